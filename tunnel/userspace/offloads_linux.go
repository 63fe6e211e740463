package userspace

import (
	"fmt"
	"reflect"
	"sync"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

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
