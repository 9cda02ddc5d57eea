"""Marks on packets of other people's sockets."""

from leveller.enforce.effective import Effective, Enforcer, Refusing
from leveller.enforce.nft import NftEnforcer, NftError

__all__ = ["Effective", "Enforcer", "NftEnforcer", "NftError", "Refusing", "best_enforcer"]


def best_enforcer() -> Enforcer:
    """Returns the best that this system lets us have; where it lets us have none, one that says why."""
    try:
        return NftEnforcer()
    except NftError as error:
        return Refusing(str(error))
