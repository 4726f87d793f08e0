"""Run a program as nobody, or as a daemon: `run.py [--nobody] [--detach LOG] PROGRAM ARGUMENT...`.

In Python because not every system has setsid and setpriv. --detach prints the process id.
"""

import os
import pwd
import sys

arguments = sys.argv[1:]
nobody = arguments[0] == "--nobody"
if nobody:
    arguments.pop(0)
log = None
if arguments[0] == "--detach":
    log = arguments[1]
    arguments = arguments[2:]

if log is not None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.fork()
    if pid:
        print(pid)
        sys.exit(0)
    # A session of its own and none of the caller's files: neither an interrupt nor a closed
    # terminal reaches the server, and nobody waits for its end of a pipe.
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1024)

if nobody:
    user = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
# The caller's folder may be closed to nobody.
os.chdir("/")

# Not execvp: it imports more modules, which nobody cannot read if Python lives in root's home.
os.execv(arguments[0], arguments)
