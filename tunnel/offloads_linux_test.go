package tunnel

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/entente-dev/entente/tunnel/userspace"
)

func TestMissingOffloadsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	f := &Fabric{log: slog.New(slog.NewTextHandler(&log, nil))}
	all := userspace.Offloads{userspace.OffloadTUNTCP: true, userspace.OffloadTUNUDP: true, userspace.OffloadUDPSend: true, userspace.OffloadUDPReceive: true}
	f.noteOffloads(all)
	f.noteOffloads(nil)
	if log.Len() != 0 || len(f.offloads) != 4 {
		t.Errorf("all are there: %v, %s", f.offloads, log.String())
	}
	for range 3 {
		f.noteOffloads(userspace.Offloads{userspace.OffloadTUNTCP: true, userspace.OffloadUDPReceive: true})
	}
	if s := log.String(); strings.Count(s, "slower") != 1 || !strings.Contains(s, "Linux 6.2") || !strings.Contains(s, "ethtool -K") || strings.Contains(s, "UDP_GRO") {
		t.Errorf("it logs %s", s)
	}
}
