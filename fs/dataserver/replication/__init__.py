"""How replicas of a file stay the same: appends, new versions, who orders them, who follows, who joins."""
