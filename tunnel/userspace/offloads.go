package userspace

import (
	"fmt"
	"strings"
)

// Offload is the processing of many packets at once, at the TUN device or at the socket of WireGuard in user space.
type Offload string

// The offloads: of TCP and of UDP at the TUN device, of sending and of receiving at the socket.
const (
	OffloadTUNTCP     Offload = "TUNTCP"
	OffloadTUNUDP     Offload = "TUNUDP"
	OffloadUDPSend    Offload = "UDPSend"
	OffloadUDPReceive Offload = "UDPReceive"
)

// Offloads are which offloads are in use. Empty means that it is unknown, as with the kernel's WireGuard.
type Offloads map[Offload]bool

// AllOffloads returns all offloads, in the order in which they are reported.
func AllOffloads() []Offload {
	return []Offload{OffloadTUNTCP, OffloadTUNUDP, OffloadUDPSend, OffloadUDPReceive}
}

// lines are offloads in a report.
func (o Offloads) lines() string {
	var b strings.Builder
	for name, on := range o {
		fmt.Fprintf(&b, "offload_%s=%t\n", name, on)
	}
	return b.String()
}
