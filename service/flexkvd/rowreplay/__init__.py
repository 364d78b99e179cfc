"""Plays selections on hot buffers, DRAM and a link to SSD, under a row policy. For `flexkv replay --selections`."""
