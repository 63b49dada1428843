"""The rows of the table: each measures one question and says what was compared."""
