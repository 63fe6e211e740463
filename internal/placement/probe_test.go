package placement

import (
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestProbeTrustsWhatTheAPIServerDoes(t *testing.T) {
	t.Parallel()
	serve := func(h http.Handler) (address string, authority []byte) {
		s := httptest.NewTLSServer(h)
		t.Cleanup(s.Close)
		return s.Listener.Addr().String(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	}
	hook, ca := serve(&Webhook{Log: slog.New(slog.DiscardHandler)})
	other, _ := serve(http.NotFoundHandler())
	const host = "example.com" // of httptest's certificate
	for name, tc := range map[string]struct {
		address, host string
		ca            []byte
		want          string
	}{
		"it works":               {hook, host, ca, ""},
		"another name":           {hook, "entente-agent.entente-system.svc", ca, "certificate is valid for"},
		"another authority":      {hook, host, []byte("nonsense"), "no certificate"},
		"nobody listens":         {"127.0.0.1:1", host, ca, "connection refused"},
		"something else listens": {other, host, ca, "status 404"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Probe(t.Context(), tc.address, tc.host, tc.ca)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
