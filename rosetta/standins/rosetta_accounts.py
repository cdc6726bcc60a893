"""Names for users and groups that the system does not know: their number. Loaded when Python
starts.

A container run as any UID, and files on a network share that belong to users of other machines,
have no entry in /etc/passwd. etils asks for the owner's name whenever it looks at a file, so that
restoring a checkpoint would end with KeyError there.
"""

import grp
import pwd

_user, _group = pwd.getpwuid, grp.getgrgid


def _getpwuid(uid: int, /) -> pwd.struct_passwd:
    try:
        return _user(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "x", uid, uid, "", "/", "/bin/sh"))


def _getgrgid(id: int) -> grp.struct_group:  # noqa: A002 - the name that grp gives it
    try:
        return _group(id)
    except KeyError:
        return grp.struct_group((str(id), "x", id, []))


pwd.getpwuid, grp.getgrgid = _getpwuid, _getgrgid
