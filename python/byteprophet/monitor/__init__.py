"""Estimates the bandwidth of a worker's links from its transfers alone.

monitor.py          the observer's consumer: estimates per server and direction
estimate.py         one direction's bandwidth over busy time, its spread and delay
message_cost.py     the time a message takes in addition to that for its bytes
processor.py        the share of core time that is used on this machine
interface_check.py  compares the interface's own counters with the transfers
samples.py          the results, and their file
"""
