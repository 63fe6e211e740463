package parameters

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func office() *ententev1.NetworkParameters {
	return &ententev1.NetworkParameters{
		ClusterId: string(peering.ClusterIDOfSPKI([]byte("office"))), DisplayName: "office", ExchangeKey: bytes.Repeat([]byte{7}, 32),
		Gateways: []*ententev1.InBandGateway{
			{Name: "gw1", PublicKey: bytes.Repeat([]byte{1}, 32), Endpoints: []string{"203.0.113.7:51820", "gw1.example.com:51820"}},
			{Name: "gw2", PublicKey: bytes.Repeat([]byte{2}, 32)},
		},
	}
}

func encoded(t testing.TB) string {
	t.Helper()
	text, err := Encode(office())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParametersFileRoundTrips(t *testing.T) {
	t.Parallel()
	text := encoded(t)
	got, err := Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(office(), got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !strings.Contains(text, "\nkind: ForeignCluster\n") || !strings.HasPrefix(text, "# How to reach cluster office\n") {
		t.Errorf("the file does not say what it is:\n%s", text)
	}
	if _, err := Decode([]byte("---\n" + text)); err != nil {
		t.Errorf("an incomplete document: %v", err)
	}
	unnamed := office()
	unnamed.DisplayName = ""
	if b, err := Encode(unnamed); err != nil || !strings.Contains(string(b), "name: peer-") {
		t.Errorf("a cluster without a name: %s %v", b, err)
	}
}

func TestMalformedParametersFilesAreRefused(t *testing.T) {
	t.Parallel()
	with := func(old, now string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, now, 1) }
	}
	for name, c := range map[string]struct {
		change func(string) string
		says   string
	}{
		"nothing":                 {func(string) string { return "" }, "kind"},
		"another kind":            {with("kind: ForeignCluster", "kind: Contract"), "kind"},
		"another version":         {with("entente.dev/v1alpha1", "entente.dev/v9"), "version"},
		"a field that is unknown": {with("spec:\n", "spec:\n  trustBundle: x\n"), "trustBundle"},
		"labels":                  {with("metadata:\n", "metadata:\n  labels: {a: b}\n"), "labels"},
		"a field twice":           {with("  decision: Approved\n", "  decision: Approved\n  decision: Approved\n"), "decision"},
		"another decision":        {with("Approved", "Denied"), "decision"},
		"no cluster ID":           {with("clusterID: ", "clusterID: x"), "ID"},
		"a key that is short":     {with("exchangeKey: Bwc", "exchangeKey: "), "exchangeKey"},
		"a key of a gateway":      {with("publicKey: AQE", "publicKey: x"), "publicKey"},
		"an endpoint":             {with("203.0.113.7:51820", "203.0.113.7"), "gw1"},
		"a name":                  {with("name: office", "name: Office/.."), "name"},
		"a second document":       {func(s string) string { return s + "---\n" + s }, "document"},
		"too much":                {func(s string) string { return s + strings.Repeat("#", MaxFile) }, "larger"},
	} {
		text := c.change(encoded(t))
		if got, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: read %v, error %v; want one about %q", name, got, err, c.says)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(encoded(f)))
	f.Add([]byte("kind: ForeignCluster"))
	f.Add([]byte("a: &a [*a, *a]"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Encode(got)
		if err != nil {
			t.Fatal(err)
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatalf("the decoded parameters do not round-trip: %v\n%s", err, again)
		}
		if diff := cmp.Diff(got, back, protocmp.Transform()); diff != "" {
			t.Errorf("(-first +second)\n%s", diff)
		}
		if n := len(got.GetGateways()); n == 0 || n > peering.MaxInBandGateways {
			t.Errorf("%d gateways", n)
		}
	})
}
