"""The one exception for things a user can mend."""


class UserError(ValueError):
    """Bad input: the message names the field or file, what was found there and what is allowed."""
