package userspace

import (
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/tun"
	"golang.zx2c4.com/wireguard/tun/tuntest"
)

// If this fails after an update of wireguard-go, its fields have changed: see readOffloads.
func TestOffloadsOfWireGuardGoAreRead(t *testing.T) {
	t.Parallel()
	bind := conn.NewDefaultBind()
	if _, _, err := bind.Open(0); err != nil {
		t.Fatal(err)
	}
	defer bind.Close()
	got, err := readOffloads(&tun.NativeTun{}, bind)
	if err != nil || len(got) != len(AllOffloads()) || got[OffloadTUNTCP] || got[OffloadTUNUDP] {
		t.Errorf("of a device without a header: %v, %v", got, err)
	}
	if !got[OffloadUDPSend] || !got[OffloadUDPReceive] {
		t.Errorf("this kernel has UDP_SEGMENT and UDP_GRO, and the socket has %v", got)
	}
	if _, err := readOffloads(tuntest.NewChannelTUN().TUN(), bindtest.NewChannelBinds()[0]); err == nil {
		t.Error("devices without these fields have offloads")
	}
}

func TestTheReportHasTheOffloads(t *testing.T) {
	t.Parallel()
	for _, want := range []Offloads{nil, {OffloadTUNTCP: true, OffloadTUNUDP: false, OffloadUDPSend: true, OffloadUDPReceive: false}} {
		got, err := parseReport(want.lines() + "errno=0\n\n")
		if err != nil || len(got.Offloads) != len(want) {
			t.Errorf("%v: %v, %v", want, got.Offloads, err)
		}
		for name, on := range want {
			if got.Offloads[name] != on {
				t.Errorf("%s is %v, want %v", name, got.Offloads[name], on)
			}
		}
	}
}
