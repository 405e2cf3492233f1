"""Tools of the kernel that all of the emulation uses: eBPF, netlink, network namespaces."""
