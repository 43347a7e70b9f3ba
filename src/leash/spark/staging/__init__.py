"""The staging folder: every file in it, who writes it, and when it is deleted.

paths.py             every file name
files.py             file operations, exclusive create among them
chunks.py            rows
seals.py             which attempt's rows count
fence.py             which batches are over
notes.py             what attempts leave for each other
owner.py             which driver owns a run
cleanup.py           when files are deleted
"""
