"""Marks on packets of other people's sockets."""

from leveller.enforce.effective import Effective, Enforcer, Refusing
from leveller.enforce.iptables import IptablesEnforcer, IptablesError
from leveller.enforce.nft import NftEnforcer, NftError

__all__ = [
    "Effective",
    "Enforcer",
    "IptablesEnforcer",
    "IptablesError",
    "NftEnforcer",
    "NftError",
    "Refusing",
    "best_enforcer",
]


def best_enforcer() -> Enforcer:
    """Returns the best that this system lets us have; where it lets us have none, one that says why."""
    try:
        return NftEnforcer()
    except NftError as error:
        first = error
    try:
        return IptablesEnforcer()
    except IptablesError as error:
        return Refusing(f"{first.strerror}; by iptables: {error.strerror}")
