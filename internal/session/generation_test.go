package session

import (
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"testing"
)

// An agent of another generation has another application protocol. That has nothing to do with
// certificates or clocks, so the status must not mention these.
func TestAPeerOfAnotherGenerationIsToBeUpgraded(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	l, err := tls.Listen("tcp", "127.0.0.1:0", b.source.ServerTLS(b.bundles, "entente/2"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, c) // shakes hands
			_ = c.Close()
		}
	}()
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{l.Addr().String()}}})
	eventually(t, "the dial fails for the generation", func() bool { return errors.Is(a.Status(b.id).Err, errGeneration) })
	if text := a.Status(b.id).Err.Error(); !strings.Contains(text, "upgrade") || strings.Contains(text, "clock") {
		t.Errorf("status says %s", text)
	}
}
