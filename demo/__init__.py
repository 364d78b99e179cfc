"""The main job, end to end: workers that serve a small sparse-attention model through flexkvd.

A readable example of how an inference engine embeds the client. Not part of the distribution.

    shape.py     sizes of the model, and the geometry the daemon is told
    model.py     the transformer: latent KV rows, an indexer plane, selections shared by layer groups
    paged.py     the worker's paged KV in its own memfd, and the pages of one request
    engine.py    match, load, prefill the rest, decode, save
    cache.py     the engine's side of the client: what to do when the daemon fails
    worker.py    one worker process; messages.py is what it says and hears
    workload.py  multi-turn agent sessions with the statistics of an agentic trace, or a trace itself
    fleet.py     the processes of a run: workers, daemon; each ended by its pid
    phases.py    cold, warm, killed, restarted, S3 alone; meter.py counts bytes meanwhile
    run.py       the command; report.py its figures and verdict, show.py its progress

Decoding with more KV than HBM holds (`--rows`, `--concurrency-sweep`):

    weights.py   weights whose selections cluster, and random ones; topics.py the prompts
    batch.py     one step of many requests in one forward; decoding.py the loop around it
    dense.py     rows all resident in pages; tiered.py over the row path, hbm.py its memory, rows_link.py its daemon
    decoder.py   one worker process of either kind
    rows_run.py  both with the same requests, rows_report.py and row_figures.py what that showed
    sweep.py     both at 1 to 32 requests at once, sweep_report.py its table and plot
"""
