package tunnel

import (
	"strings"

	"github.com/entente-dev/entente/tunnel/userspace"
)

// missingOffload says what to do where an offload is missing.
func missingOffload(name userspace.Offload) string {
	switch name {
	case userspace.OffloadTUNTCP:
		return "the TUN device takes no segments of TCP: use the kernel's own TUN driver"
	case userspace.OffloadTUNUDP:
		return "the TUN device takes no segments of UDP: they need Linux 6.2"
	case userspace.OffloadUDPSend:
		return "the socket sends no batches (UDP_SEGMENT): they need Linux 4.18 and a network card that computes checksums when it sends (ethtool -K DEVICE tx on)"
	default:
		return "the socket receives no batches (UDP_GRO): they need Linux 5.0"
	}
}

// noteOffloads keeps the offloads that the tunnel process reports, and logs those that are missing, if that has changed.
func (f *Fabric) noteOffloads(report userspace.Offloads) {
	if len(report) == 0 {
		return // it is of another version
	}
	var missing []string
	for _, name := range userspace.AllOffloads() {
		if !report[name] {
			missing = append(missing, missingOffload(name))
		}
	}
	text := strings.Join(missing, "; ")
	if text != "" && text != f.offloadsLogged {
		f.log.Warn("tunnels of this node are slower than they could be", "why", text)
	}
	f.offloads, f.offloadsLogged = report, text
}
