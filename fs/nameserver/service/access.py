"""Whether one of the users that a certificate may act for has a permission (POSIX.1e draft 17, 23.1.5: the access
check algorithm). A mount could say that it asks for any of them: what one of them may, it may."""

from collections.abc import Sequence

from speedwell.fs.identity.scope import Scope
from speedwell.fs.nameserver.namespace.acls import GROUP, MASK, OTHER, OWNER, OWNING_GROUP, USER, Entry

READ, WRITE, SEARCH = 4, 2, 1


def may(mode: int, acl: Sequence[Entry], owner: int, group: int, who: Scope, wanted: int) -> bool:
    """`acl` is the access list, empty where there is none; `wanted` are bits as in a mode. In which of the scope's
    groups a user is nobody knows: in any, or in none. As in Linux (fs/namei.c, acl_permission_check) a list with an
    empty mask counts for nothing."""
    if who.root:
        return True
    entries = acl if acl and mode & 0o070 else [
        Entry(OWNER, mode >> 6 & 7, 0), Entry(OWNING_GROUP, mode >> 3 & 7, 0), Entry(OTHER, mode & 7, 0)]
    mask = next((entry.permissions for entry in entries if entry.tag == MASK), 7)
    named = {entry.number for entry in entries if entry.tag == USER} | {owner}
    have_others = not who.is_only(named)

    def grants(entry: Entry) -> bool:
        if entry.tag == OWNER:
            return who.has_user(owner)
        if entry.tag == USER:
            return entry.number != owner and who.has_user(entry.number)
        if entry.tag in (OWNING_GROUP, GROUP):
            return have_others and who.has_group(group if entry.tag == OWNING_GROUP else entry.number)
        return entry.tag == OTHER and have_others

    return any(wanted & ~(entry.permissions & (7 if entry.tag in (OWNER, OTHER) else mask)) == 0 and grants(entry)
               for entry in entries)
