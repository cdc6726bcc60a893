"""Let `pwd` and `grp` answer for users and groups without an entry: the name is then the number.

Python loads this module when it starts. A container that runs under an arbitrary UID has no entry
in /etc/passwd, and neither has the owner of a file on a network share who is a user of another
machine. etils asks for the owner's name of every file that it looks at. Without this module, it
would end the restoring of a checkpoint with a KeyError.
"""

import grp
import pwd

_real_getpwuid, _real_getgrgid = pwd.getpwuid, grp.getgrgid


def _getpwuid(uid: int, /) -> pwd.struct_passwd:
    try:
        return _real_getpwuid(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "x", uid, uid, "", "/", "/bin/sh"))


def _getgrgid(id: int) -> grp.struct_group:  # noqa: A002 - the name that grp gives it
    try:
        return _real_getgrgid(id)
    except KeyError:
        return grp.struct_group((str(id), "x", id, []))


pwd.getpwuid, grp.getgrgid = _getpwuid, _getgrgid
