"""The way in; its work is in run.py, where a spawned process finds it again."""

from benchmarks.run import main

if __name__ == "__main__":
    main()
