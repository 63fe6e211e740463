package tunnel

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// RelayPort is the TCP port on which gateways relay the peer API of in-band peers: on their
// overlay addresses for the peers, where it has to be the same in all clusters that peer, and on their
// own for their cluster's agent.
const RelayPort = 7448

// Config configures a fabric.
type Config struct {
	// Device is the name of the WireGuard device. Default "entente0".
	Device string
	// ListenPort is the UDP port of the device, for all peers. Default 51820.
	ListenPort int
	// ProbePort is the UDP port, inside the tunnel only, where probes are
	// answered. Default 7445. It must be the same in all clusters that peer.
	ProbePort int
	// MTU of the device, which no packet in a tunnel exceeds. Default: the largest that any of the
	// networks on the way to the peers allows, less 80 bytes, at least [probe.MinMTU]. Probes find the
	// path MTU to each peer.
	MTU int
	// Userspace keeps the fabric from using the kernel's WireGuard.
	Userspace bool
	// DelayRelay delays packets that arrive through the agents from the peer with an address
	// [plan.Gateway.Relay]. May be nil.
	DelayRelay func(relay netip.AddrPort, d time.Duration)
	// Keys keeps this node's key over a restart of both processes. Nil keeps none.
	Keys KeyStore
	// Log receives changes and problems. Default: none.
	Log *slog.Logger
}

// KeyStore keeps the private key of a node's device, whose public key others know. One goroutine calls
// both methods, and waits for them.
type KeyStore interface {
	// Load returns the key that was last saved, or nil.
	Load() []byte
	// Save keeps a copy of the key. If it fails, [KeyStore.Load] returns no other key either if possible,
	// and it is called again.
	Save(key []byte) error
}

func (c Config) withDefaults() (Config, error) {
	if c.Device == "" {
		c.Device = userspace.DefaultDevice
	}
	if c.ListenPort == 0 {
		c.ListenPort = 51820
	}
	if c.ProbePort == 0 {
		c.ProbePort = 7445
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := userspace.CheckDevice(c.Device); err != nil {
		return c, err
	}
	switch {
	case c.ListenPort < 1 || c.ListenPort > 65535 || c.ProbePort < 1 || c.ProbePort > 65535:
		return c, errors.New("ports must be from 1 to 65535")
	case c.MTU != 0 && (c.MTU < probe.MinMTU || c.MTU > maxMTU):
		return c, fmt.Errorf("MTU %d must be from %d to %d", c.MTU, probe.MinMTU, maxMTU)
	}
	return c, nil
}
