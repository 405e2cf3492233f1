"""Users' applications for Ryu or os-ken, in a process and on an OpenFlow port of their own."""
