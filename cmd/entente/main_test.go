package main

import (
	"bytes"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// testEnvelope is a contract that two clusters signed, made once for all tests.
var testEnvelope, testConsumer, testProvider = makeEnvelope()

func makeEnvelope() (envelope, consumer, provider string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	a, err := identity.Generate(epoch)
	must(err)
	b, err := identity.Generate(epoch)
	must(err)
	e, err := peering.NewEnvelope(peering.Terms{
		ContractID: "c-1", RequestID: "r-1", Revision: 1, Consumer: a.Party(), Provider: b.Party(),
		Resources: peering.Resources{"cpu": peering.Whole(4)}, NotBefore: epoch, NotAfter: epoch.Add(24 * time.Hour),
		Network: true, PodSecurity: peering.PodSecurityBaseline,
	})
	must(err)
	e, err = e.Sign(rand.Reader, a.Signer())
	must(err)
	e, err = e.Sign(rand.Reader, b.Signer())
	must(err)
	raw, err := e.Marshal()
	must(err)
	return string(raw), string(a.ID()), string(b.ID())
}

// golden runs commands and compares all that they printed with a file.
func golden(t *testing.T, name string, w *world, commands ...[]string) {
	t.Helper()
	var got bytes.Buffer
	for _, args := range commands {
		out, errOut, code := w.run(t, "", args...)
		fmt.Fprintf(&got, "$ entente %s\n%s", strings.Join(args, " "), out)
		if errOut != "" {
			fmt.Fprintf(&got, "--- stderr\n%s", errOut)
		}
		fmt.Fprintf(&got, "--- exit %d\n\n", code)
	}
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPeerDoesBothSidesAndRepeatsNothing(t *testing.T) {
	w := newWorld()
	golden(t, "peer-both", w,
		[]string{"peer", "--remote-kubeconfig", "provider.yaml", "--cpu", "4", "--memory", "8Gi"},
		[]string{"peer", "--remote-kubeconfig", "provider.yaml"},
	)
	if n := strings.Count(strings.Join(w.provider.requests, "\n"), "CreateToken"); n != 1 {
		t.Errorf("%d tokens were made", n)
	}
}

func TestPeerWithAClusterThatHasJoined(t *testing.T) {
	w := newWorld()
	w.joined = true
	golden(t, "peer-joined", w,
		[]string{"peer", "provider", "--no-network", "--resource", "nvidia.com/gpu=1", "--duration", "24h"},
	)
	if got := strings.Join(w.consumer.requests, "\n"); !strings.Contains(got, "CreatePeering peers/provider nvidia.com/gpu 1 24h0m0s true") {
		t.Errorf("asked:\n%s", got)
	}
}

func TestPeerSaysWhatItWaitedFor(t *testing.T) {
	for _, hop := range []string{"Connected", "Contract", "Network", "Offloading"} {
		t.Run(hop, func(t *testing.T) {
			w := newWorld()
			w.stuck = hop
			golden(t, "peer-stuck-"+strings.ToLower(hop), w, []string{"peer", "--remote-context", "provider"})
		})
	}
}

func TestPeerGivesUpWhenTheProviderRefuses(t *testing.T) {
	w := newWorld()
	w.refuse = `policy "default" lends nothing to this peer`
	golden(t, "peer-refused", w, []string{"peer", "--remote-context", "provider"})
}

func TestPeerWaitsWhileTheAgentIsAway(t *testing.T) {
	w := newWorld()
	w.away = map[int]bool{3: true, 4: true, 7: true}
	out, errOut, code := w.run(t, "", "peer", "--remote-context", "provider")
	if code != exitOK || !strings.Contains(out, "is Ready") || !strings.Contains(errOut, "for the agent to answer (no leader)") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
}

func TestPeerFailsAtOnceWhereItCannotAsk(t *testing.T) {
	w := newWorld()
	w.consumer.err = &wire.Error{Reason: wire.ReasonKubernetes, Message: "no API server"}
	_, errOut, code := w.run(t, "", "peer", "provider")
	if code != exitError || !strings.Contains(errOut, "KUBERNETES_UNAVAILABLE") {
		t.Errorf("got %d %s", code, errOut)
	}
}

func TestPeerJoinsTheOtherWayRoundWhereTheProviderCannotBeDialled(t *testing.T) {
	w := newWorld()
	w.hidden = true
	golden(t, "peer-hidden", w, []string{"peer", "--remote-context", "provider"})
}

func TestUnpeerDrainsAndWaits(t *testing.T) {
	w := newWorld()
	w.joined, w.asked, w.polls, w.pods = true, true, 100, 3
	golden(t, "unpeer", w, []string{"unpeer", "provider"})
}

func TestUnpeerBothSidesForgets(t *testing.T) {
	w := newWorld()
	w.joined, w.asked, w.polls, w.pods = true, true, 100, 2
	golden(t, "unpeer-forget", w, []string{"unpeer", "--remote-kubeconfig", "p.yaml", "--now", "--forget"})
}

func TestUnpeerTellsWhenDrainingTakesTooLong(t *testing.T) {
	w := newWorld()
	w.joined, w.asked, w.polls, w.pods, w.noDrain = true, true, 100, 3, true
	golden(t, "unpeer-stuck", w, []string{"unpeer", "provider"})
}

func TestUnpeerNowAsksWhoeverIsThere(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "yes\n": true, "n\n": false, "\n": false, "x": false} {
		w := newWorld()
		w.joined, w.asked, w.polls, w.pods = true, true, 100, 3
		out, _, code := w.run(t, answer, "unpeer", "provider", "--now")
		if (code == exitOK) != want || !strings.Contains(out, "3 pods by the contracts with provider will be killed") {
			t.Errorf("answer %q: exit %d, printed %s", answer, code, out)
		}
		if ended := strings.Contains(strings.Join(w.consumer.requests, " "), "EndPeering"); ended != want {
			t.Errorf("answer %q: ended is %v", answer, ended)
		}
	}
}

func TestInfoTellsAndItsExitCodeSaysHowThingsAre(t *testing.T) {
	w := newWorld()
	golden(t, "info-alone", w, []string{"info"}, []string{"info", "peer"})
	w.joined, w.asked, w.polls, w.pods = true, true, 100, 3
	golden(t, "info", w,
		[]string{"info"}, []string{"info", "-o", "json"}, []string{"info", "--get", "cluster.clusterid"}, []string{"info", "--get", "healthy"},
		[]string{"info", "peer"}, []string{"info", "peer", "provider", "-o", "yaml"},
		[]string{"info", "peer", "provider", "--get", "tunnel.roundTrip"}, []string{"info", "peer", "provider", "--get", "contracts.0.phase"},
		[]string{"info", "peer", "provider", "--get", "nothing"}, []string{"info", "peer", "nobody"},
	)
	w.stuck = "Network"
	golden(t, "info-unhealthy", w, []string{"info"}, []string{"info", "--get", "healthy"})
}

func TestTokensJoiningAndNamespaces(t *testing.T) {
	w := newWorld()
	golden(t, "small", w,
		[]string{"token", "create"}, []string{"token", "create", "--ttl", "2m", "-o", "json"}, []string{"token", "create", "--ttl", "1h"},
		[]string{"join", "ent1.fake-token.checksum", "--name", "office"},
		[]string{"offload", "namespace", "shop"}, []string{"offload", "namespace", "shop", "--strategy", "Remote", "--mapping", "Same", "--peer", "office", "--peer", "lab"},
		[]string{"offload", "namespace", "shop", "--strategy", "Both"},
		[]string{"unoffload", "namespace", "shop"},
		[]string{"version"}, []string{"version", "--client", "-o", "json"},
	)
	want := []string{
		"CreateToken 15m0s", "CreateToken 2m0s", "JoinPeer ent1.fake-token.checksum office",
		"OffloadNamespace namespaces/shop LocalAndRemote  []", "OffloadNamespace namespaces/shop Remote Same [office lab]",
		"UnoffloadNamespace namespaces/shop", "GetInfo",
	}
	if diff := cmp.Diff(want, w.consumer.requests); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestATokenCanComeFromAPipe(t *testing.T) {
	w := newWorld()
	if _, errOut, code := w.run(t, "  ent1.piped.token \n", "join", "-"); code != 0 {
		t.Errorf("exit %d: %s", code, errOut)
	}
	if got := w.consumer.requests[0]; got != "JoinPeer ent1.piped.token " {
		t.Errorf("sent %q", got)
	}
	if _, _, code := w.run(t, "\n", "join", "-"); code != exitUsage {
		t.Errorf("an empty line: exit %d", code)
	}
}

func TestErrorsTellWhatWhereAndWhatNext(t *testing.T) {
	w := newWorld()
	w.consumer.err = &wire.Error{Reason: wire.ReasonCallerNotAllowed, Message: `user "alice" may not create tokens.entente.dev`}
	golden(t, "errors", w,
		[]string{"token", "create"}, []string{"info"}, []string{"unoffload", "namespace", "x"},
		[]string{"peer"}, []string{"peer", "x", "--remote-context", "y"}, []string{"peer", "x", "--resource", "cpu"}, []string{"peer", "x", "--bogus"},
		[]string{"unpeer"}, []string{"join"}, []string{"nonsense"}, []string{"contract", "nonsense"}, []string{"info", "-o", "xml"},
	)
}

func TestContractsAreListedShownAndVerified(t *testing.T) {
	w := newWorld()
	w.joined, w.asked, w.polls, w.pods = true, true, 100, 3
	golden(t, "contract-list", w, []string{"contract", "list"}, []string{"contract", "list", "-o", "json"})

	out, _, code := w.run(t, "", "contract", "show", "c-1", "-o", "json")
	if code != 0 {
		t.Fatalf("show: exit %d", code)
	}
	verified, errOut, code := w.run(t, out, "contract", "verify", "-", "--consumer", testConsumer, "--provider", testProvider)
	if code != 0 || !strings.Contains(verified, testConsumer) || !strings.Contains(verified, "24h left") {
		t.Errorf("verify what show printed: exit %d\n%s%s", code, verified, errOut)
	}
	resource := "apiVersion: entente.dev/v1alpha1\nkind: Contract\nspec:\n  envelope: '" + testEnvelope + "'\n"
	file := filepath.Join(t.TempDir(), "contract.yaml")
	if err := os.WriteFile(file, []byte(resource), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errOut, code := w.run(t, "", "contract", "verify", file); code != 0 {
		t.Errorf("verify a resource: exit %d: %s", code, errOut)
	}
	e, err := peering.ParseEnvelope([]byte(testEnvelope))
	if err != nil {
		t.Fatal(err)
	}
	changed := e
	changed.Payload = bytes.Replace(e.Payload, []byte(`"cpu":"4"`), []byte(`"cpu":"9"`), 1)
	one := e
	one.Signatures = e.Signatures[:1]
	for name, tc := range map[string]struct {
		envelope peering.Envelope
		args     []string
	}{
		"terms that were changed":     {changed, nil},
		"a signature that is missing": {one, nil},
		"another consumer":            {e, []string{"--consumer", testProvider}},
	} {
		raw, err := tc.envelope.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		out, errOut, code := w.run(t, string(raw), append([]string{"contract", "verify", "-"}, tc.args...)...)
		if code != exitError || !strings.Contains(errOut, "NOT") || out != "" {
			t.Errorf("%s: exit %d, printed %q %q", name, code, out, errOut)
		}
	}
	for _, garbage := range []string{"", "hello", "kind: Contract", "{}", "\x00"} {
		if _, _, code := w.run(t, garbage+"\n", "contract", "verify", "-"); code != exitError {
			t.Errorf("%q: exit %d", garbage, code)
		}
	}
}

func TestEveryCommandTeachesItsUse(t *testing.T) {
	a := &app{in: strings.NewReader(""), out: &bytes.Buffer{}, errOut: &bytes.Buffer{}}
	root := a.root("kubectl-entente")
	if got := root.CommandPath(); got != "kubectl entente" {
		t.Errorf("as a plugin it is called %q", got)
	}
	for _, path := range [][]string{
		{"token", "create"},
		{"join"},
		{"peer"},
		{"unpeer"},
		{"offload", "namespace"},
		{"unoffload", "namespace"},
		{"info"},
		{"info", "peer"},
		{"contract", "list"},
		{"contract", "show"},
		{"contract", "verify"},
		{"version"},
	} {
		cmd, _, err := root.Find(path)
		if err != nil || cmd.Short == "" || cmd.Example == "" || cmd.Name() != path[len(path)-1] {
			t.Errorf("%v: %v, short %q, example %q", path, err, cmd.Short, cmd.Example)
		}
	}
	for _, flag := range []string{"kubeconfig", "context", "namespace", "entente-namespace"} {
		if root.PersistentFlags().Lookup(flag) == nil {
			t.Errorf("no --%s", flag)
		}
	}
}

func FuzzEnvelopeIn(f *testing.F) {
	f.Add([]byte(testEnvelope))
	f.Add([]byte("kind: Contract\nspec: {envelope: '{}'}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		raw, err := envelopeIn(b)
		if err != nil {
			return
		}
		e, err := peering.ParseEnvelope(raw)
		if err == nil {
			_, _ = e.Verify()
		}
	})
}

func FuzzLookUp(f *testing.F) {
	f.Add("a.0.b")
	f.Fuzz(func(t *testing.T, path string) {
		_, _ = lookUp(map[string]any{"a": []any{map[string]any{"b": "c"}}}, path)
	})
}
