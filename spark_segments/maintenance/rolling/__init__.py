"""Rolling: the chunks of an active segment become sealed segments."""
