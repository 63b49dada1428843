"""Training a GPT from a folder of texts: corpus, optimizer, loop, held-out measures.

Made the embedded demo model and can make yours. Knows nothing of HTTP.
"""
