"""Everything that moves bytes: arena, lanes, and the tiers below DRAM."""
