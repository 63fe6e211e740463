package session

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/entente-dev/entente/internal/identity"
)

// A peer that no person vouches for has its endpoints checked as those of others' word.
func TestACheckedPeerIsDialledOnlyAtAllowedAddresses(t *testing.T) {
	t.Parallel()
	forbidden := []string{"169.254.169.254:80", "127.0.0.1:1", "[::1]:1", "10.96.0.1:443", "[::ffff:10.96.0.1]:443"}
	b := start(t)
	var d dials
	a := start(t, recorded(&d, b.addr))
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: forbidden, Checked: true}})
	eventually(t, "the status has why there is no session", func() bool {
		err := a.Status(b.id).Err
		return errors.Is(err, errReserved) && strings.Contains(err.Error(), forbidden[0])
	})
	a.SetPeers([]Peer{{ID: b.id, Endpoints: append(forbidden[:2:2], b.addr), Checked: true}})
	eventually(t, "there is a session", func() bool { return a.Status(b.id).Session != nil })
	if len(d.all) != 1 || d.all[0] != b.addr {
		t.Errorf("dialled %q, want %s only", d.all, b.addr)
	}
}

// What a name leads to is checked when it is dialled, so that it cannot change meanwhile.
func TestACheckedPeersNameIsDialledOnlyAtAllowedAddresses(t *testing.T) {
	t.Parallel()
	b := start(t)
	_, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		t.Fatal(err)
	}
	for name, may := range map[string]bool{"it may": true, "it may not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, dialOnly, func(c *Config, _ *identity.SourceConfig) {
				c.MayDial = func(endpoint string) bool { return may && endpoint == b.addr }
			})
			trustEachOther(t, a, b)
			a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{"localhost:" + port}, Checked: true}})
			eventually(t, "that it was dialled", func() bool {
				s := a.Status(b.id)
				return s.Session != nil || s.Err != nil
			})
			if s := a.Status(b.id); (s.Session != nil) != may || !may && !errors.Is(s.Err, errReserved) {
				t.Errorf("session %+v, error %v", s.Session, s.Err)
			}
		})
	}
}
