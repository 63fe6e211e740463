// Package userspace is the tunnel process of a node: it moves the packets of a WireGuard device with
// wireguard-go where the kernel has no WireGuard, with a bounded number of buffers (design 0019). The
// fabric configures the device over a socket, by WireGuard's own protocol, and asks for what that does
// not have: see [Report]. It runs beside the fabric, so that a restart of the fabric loses no packet.
package userspace

import (
	"fmt"
	"log/slog"
	"strings"
)

// DefaultDevice is the name of a device whose configuration has none.
const DefaultDevice = "entente0"

// Config configures the tunnel process.
type Config struct {
	// Device is the name of the device. Default [DefaultDevice].
	Device string
	// Userspace makes the device even if the kernel has WireGuard.
	Userspace bool
	// Log receives errors. Default: none.
	Log *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Device == "" {
		c.Device = DefaultDevice
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, CheckDevice(c.Device)
}

// CheckDevice returns an error if a name cannot be that of a device.
func CheckDevice(name string) error {
	if len(name) > 15 || strings.ContainsAny(name, "/ \t\n%:") || name == "." || name == ".." {
		return fmt.Errorf("%q is not a valid interface name", name)
	}
	return nil
}
