"""The resident process of a box: stdlib only, Python 3.8 or newer, since it runs on the interpreter of the task.

It is PID 1 of the box, so nothing in the box can kill it, and it is not dumpable, so nothing in the box can look into
it. It serves one request at a time over the socket on its standard input.
"""
