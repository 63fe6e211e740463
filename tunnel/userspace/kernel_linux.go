package userspace

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddKernelDevice makes a device of the kernel's WireGuard. It returns EOPNOTSUPP if
// the kernel has no WireGuard.
func AddKernelDevice(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("create interface %s: %w: the container needs the capability NET_ADMIN", name, err)
	default:
		return fmt.Errorf("create interface %s: %w", name, err)
	}
}
