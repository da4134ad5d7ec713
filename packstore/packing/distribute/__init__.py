"""Conversions by many processes or machines: a shared plan, a task for each shard, a receipt for each task, one commit.

The protocol, under ``_work/<run>/`` at the destination:

1. The driver writes ``plan.json`` if there is none. It refuses a different plan.
2. A task packs one shard, uploads it under its digest, and creates its receipt ``done/000042.json``. A task may run any
   number of times. Shard and receipt have the same bytes each time; if not, the run fails and names both digests.
3. A restarted driver runs the tasks without a receipt.
4. When all receipts exist, the driver checks for duplicate keys, writes ``head.json`` and the table, and creates the
   next version of the store. At last it deletes the receipts, and after them the plan.
"""
