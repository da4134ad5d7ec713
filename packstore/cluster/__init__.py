"""Conversions by many processes or machines: a plan that they share, a task a shard, a receipt for each, one commit.

May import ``core``, ``images``, ``objects``, ``stores``, ``sources`` and ``packing``. The protocol, under
``_work/<run>/`` at the destination:

1. The driver writes ``plan.json`` if there is none. Another plan there is refused.
2. A task packs one shard, uploads it under its digest, and creates its receipt ``done/000042.json``. Tasks run as often
   as they like: a shard and a receipt are the same bytes each time, or else the run ends with both digests.
3. A driver that starts again runs the tasks that have no receipt.
4. With all receipts the driver looks for keys that come twice, writes ``head.json`` and the table, and creates the next
   version of the store. Then it deletes the receipts, and the plan last.
"""
