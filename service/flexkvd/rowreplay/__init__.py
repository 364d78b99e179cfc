"""Plays selections against hot buffers, DRAM and a link to SSD, under a row policy: what `flexkv replay --selections` runs."""
