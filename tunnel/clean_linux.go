package tunnel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// Clean removes what the fabric made in this network namespace, by its marks:
// routes, rules, the nftables table and the device. The fabric and the tunnel
// process must have ended, or they make it again. Nothing to remove is no
// error.
func Clean(cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("clean: %w", err)
	}
	_, routes := ensureRoutes(nil)
	_, policy := ensureRules(nil)
	if err := errors.Join(routes, policy, removeLink(cfg.Device), removeTable()); err != nil {
		return fmt.Errorf("clean: %w", err)
	}
	return nil
}

// removeLink deletes the device, if it is one of ours.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	if t := link.Type(); t != "wireguard" && t != "tuntap" && t != "tun" {
		return fmt.Errorf("interface %s is of type %s, not ours: left alone", name, t)
	}
	if err := netlink.LinkDel(link); err != nil && !errors.As(err, &missing) {
		return fmt.Errorf("delete interface %s: %w", name, err)
	}
	return nil
}
