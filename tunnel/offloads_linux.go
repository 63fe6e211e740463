package tunnel

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

// offloadNames returns those of all offloads, in the order in which they are reported.
func offloadNames() []Offload {
	return []Offload{OffloadTUNTCP, OffloadTUNUDP, OffloadUDPSend, OffloadUDPReceive}
}

// readOffloads returns which offloads a device and its socket use now. wireguard-go finds that out by itself, and stops sending
// segments where a network card refuses them, but says neither: both are in private fields. An error says
// that this wireguard-go has other fields.
func readOffloads(t tun.Device, b conn.Bind) (Offloads, error) {
	device, bind := reflect.Indirect(reflect.ValueOf(t)), reflect.Indirect(reflect.ValueOf(b))
	if lock := bind.FieldByName("mu"); lock.IsValid() && lock.Type() == reflect.TypeFor[sync.Mutex]() {
		mu := (*sync.Mutex)(lock.Addr().UnsafePointer())
		mu.Lock()
		defer mu.Unlock()
	}
	var err error
	flag := func(of reflect.Value, name string) bool {
		f := of.FieldByName(name)
		if !f.IsValid() || f.Kind() != reflect.Bool {
			err = fmt.Errorf("read the offloads of wireguard-go: it has no %s", name)
			return false
		}
		return f.Bool()
	}
	both := func(direction string) bool { // of the sockets that there are
		all := true
		for _, family := range []string{"ipv4", "ipv6"} {
			if socket := bind.FieldByName(family); socket.IsValid() && socket.Kind() == reflect.Pointer && !socket.IsNil() {
				all = flag(bind, family+direction) && all
			}
		}
		return all
	}
	header := flag(device, "vnetHdr")
	return Offloads{
		OffloadTUNTCP: header, OffloadTUNUDP: header && flag(device, "udpGSO"),
		OffloadUDPSend: both("TxOffload"), OffloadUDPReceive: both("RxOffload"),
	}, err
}

// missingOffload says what to do where an offload is missing.
func missingOffload(name Offload) string {
	switch name {
	case OffloadTUNTCP:
		return "the TUN device takes no segments of TCP: use the kernel's own TUN driver"
	case OffloadTUNUDP:
		return "the TUN device takes no segments of UDP: they need Linux 6.2"
	case OffloadUDPSend:
		return "the socket sends no batches (UDP_SEGMENT): they need Linux 4.18 and a network card that computes checksums when it sends (ethtool -K DEVICE tx on)"
	default:
		return "the socket receives no batches (UDP_GRO): they need Linux 5.0"
	}
}

// noteOffloads keeps the offloads that the tunnel process reports, and logs those that are missing, if that has changed.
func (f *Fabric) noteOffloads(report Offloads) {
	if len(report) == 0 {
		return // it is of another version
	}
	var missing []string
	for _, name := range offloadNames() {
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
