package tunnel

import (
	"bytes"
	"log/slog"
	"strings"
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
	if err != nil || len(got) != len(offloadNames()) || got[OffloadTUNTCP] || got[OffloadTUNUDP] {
		t.Errorf("of a device without a header: %v, %v", got, err)
	}
	if !got[OffloadUDPSend] || !got[OffloadUDPReceive] {
		t.Errorf("this kernel has UDP_SEGMENT and UDP_GRO, and the socket has %v", got)
	}
	if _, err := readOffloads(tuntest.NewChannelTUN().TUN(), bindtest.NewChannelBinds()[0]); err == nil {
		t.Error("devices without these fields have offloads")
	}
}

func TestMissingOffloadsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	f := &Fabric{log: slog.New(slog.NewTextHandler(&log, nil))}
	all := Offloads{OffloadTUNTCP: true, OffloadTUNUDP: true, OffloadUDPSend: true, OffloadUDPReceive: true}
	f.noteOffloads(all)
	f.noteOffloads(nil)
	if log.Len() != 0 || len(f.offloads) != 4 {
		t.Errorf("all are there: %v, %s", f.offloads, log.String())
	}
	for range 3 {
		f.noteOffloads(Offloads{OffloadTUNTCP: true, OffloadUDPReceive: true})
	}
	if s := log.String(); strings.Count(s, "slower") != 1 || !strings.Contains(s, "Linux 6.2") || !strings.Contains(s, "ethtool -K") || strings.Contains(s, "UDP_GRO") {
		t.Errorf("it logs %s", s)
	}
}

func TestTheReportHasTheOffloads(t *testing.T) {
	t.Parallel()
	for _, want := range []Offloads{nil, {OffloadTUNTCP: true, OffloadTUNUDP: false, OffloadUDPSend: true, OffloadUDPReceive: false}} {
		got, err := parseReport(want.lines() + "errno=0\n\n")
		if err != nil || len(got.offloads) != len(want) {
			t.Errorf("%v: %v, %v", want, got.offloads, err)
		}
		for name, on := range want {
			if got.offloads[name] != on {
				t.Errorf("%s is %v, want %v", name, got.offloads[name], on)
			}
		}
	}
}
