package fabric

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/tunnel/plan"
)

func thisNode() owner { return owner{Node: "a", NodeUID: "n-1", Account: "s-1"} }

// tokenFor is a token as the API server makes them, apart from its signature.
func tokenFor(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

const ownClaims = `{"aud":["x"],"exp":1,"kubernetes.io":{"namespace":"entente-system","node":{"name":"a","uid":"n-1"},"pod":{"name":"p","uid":"p-1"},"serviceaccount":{"name":"entente-fabric","uid":"s-1"}}}`

func TestATokenIdentifiesTheOwnerOfTheState(t *testing.T) {
	t.Parallel()
	got, err := ownerOf(tokenFor(ownClaims)+"\n", "a")
	if err != nil || got != thisNode() {
		t.Errorf("owner is %+v, %v", got, err)
	}
	for name, token := range map[string]string{
		"nothing":            "",
		"no token":           "a.b",
		"no base64":          "a.*.c",
		"no JSON":            "a." + base64.RawURLEncoding.EncodeToString([]byte("x")) + ".c",
		"no node":            tokenFor(`{"kubernetes.io":{"serviceaccount":{"name":"f","uid":"s-1"}}}`),
		"no service account": tokenFor(`{"kubernetes.io":{"node":{"name":"a","uid":"n-1"}}}`),
		"another node":       tokenFor(strings.Replace(ownClaims, `"name":"a"`, `"name":"b"`, 1)),
		"something else":     tokenFor(`{"kubernetes.io":[]}`),
	} {
		if got, err := ownerOf(token, "a"); err == nil {
			t.Errorf("%s: owner is %+v", name, got)
		}
	}
}

// savedFor is what node a of a cluster keeps, which peers with p.
func savedFor(confirmed time.Time) *savedPlan {
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	own.Spec.PodCIDRs = []string{"10.200.0.0/24"}
	tun := tunnelTo("p", 0, v1alpha1.Exposure{Contract: "c", AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"10.200.0.9"}, AnyPort: true}}})
	nodes, tunnels := []v1alpha1.FabricNode{fabricNode("a", "me", keyA, true)}, []v1alpha1.Tunnel{tun}
	secret := map[string][]byte{"p": bytes.Repeat([]byte{7}, 32), "p.next": bytes.Repeat([]byte{8}, 32), "p.first": bytes.Repeat([]byte{9}, 32), "p.number": []byte("3")}
	return newSavedPlan(confirmed, own, nodes, tunnels, Known{}.Update(nodes, tunnels, secret))
}

func TestSavedStateIsPlannedAsItWas(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	kept := savedFor(now)
	b, err := encodeState(thisNode(), kept)
	if err != nil {
		t.Fatal(err)
	}
	var got savedPlan
	if err := decodeState(b, thisNode(), &got); err != nil {
		t.Fatal(err)
	}
	compare := cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
	plans := func(s *savedPlan) *plan.Desired {
		return Desired(Config{Node: "a"}, nil, s.FabricNodes, s.Tunnels, s.known(), now)
	}
	if diff := cmp.Diff(plans(kept), plans(&got), compare); diff != "" {
		t.Errorf("what is planned (-before +after):\n%s", diff)
	}
	if p := plans(&got).Peers[0]; p.PresharedKey != plan.PresharedKey(bytes.Repeat([]byte{7}, 32)) || p.Spare.Next.IsZero() || p.Spare.First.IsZero() || !p.Spare.Previous.IsZero() || p.Spare.Number != 3 || p.KeyMissing {
		t.Error("the keys are others")
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v", got, got, got.Keys), fmt.Sprintf("%v %+v", savedKey{[]byte("secret")}, savedKey{[]byte("secret")})} {
		if strings.Contains(text, "7 7 7") || strings.Contains(text, "0x7, 0x7") || strings.Contains(text, "070707") || strings.Contains(text, "secret") || strings.Contains(text, fmt.Sprintf("%x", "secret")) {
			t.Errorf("it prints secrets: %s", text)
		}
	}
}

func TestSavedStateExpires(t *testing.T) {
	t.Parallel()
	confirmed := time.Unix(2e9, 0).UTC()
	ending := func(in time.Duration) func(*savedPlan) {
		return func(s *savedPlan) {
			s.Tunnels[0].Spec.ContractEnds = []v1alpha1.ContractEnd{{Contract: "c", Time: metav1.NewTime(confirmed.Add(in))}}
		}
	}
	for name, tt := range map[string]struct {
		after time.Duration
		edit  func(*savedPlan)
		peers int
		stale bool
	}{
		"a moment old":                 {time.Second, nil, 1, false},
		"just young enough":            {savedLife, nil, 1, false},
		"too old":                      {savedLife + time.Second, nil, 0, true},
		"the clock is behind":          {-time.Hour, nil, 1, false},
		"its contract goes on":         {time.Hour, ending(2 * time.Hour), 1, false},
		"its contract ended meanwhile": {3 * time.Hour, ending(2 * time.Hour), 0, false},
		"its contract had ended, and the clock is behind": {-3 * time.Hour, ending(-2 * time.Hour), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := savedFor(confirmed)
			if tt.edit != nil {
				tt.edit(s)
			}
			tunnels, at, stale := s.usable(confirmed.Add(tt.after))
			got := Desired(Config{Node: "a", AliasPool: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}}, nil, s.FabricNodes, tunnels, s.known(), at)
			if got == nil || len(got.Peers) != tt.peers || stale != tt.stale {
				t.Errorf("stale %v, desired %+v; want %v and %d peers", stale, got, tt.stale, tt.peers)
			}
			if got != nil && len(got.Pool) == 0 {
				t.Error("the pool is not closed")
			}
		})
	}
}

func TestStateOfAnotherNodeIsRefused(t *testing.T) {
	t.Parallel()
	good, err := encodeState(thisNode(), savedFor(time.Unix(2e9, 0)))
	if err != nil {
		t.Fatal(err)
	}
	foreign := func(edit func(*owner)) []byte {
		of := thisNode()
		edit(&of)
		b, err := encodeState(of, savedFor(time.Unix(2e9, 0)))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	wrong, _ := encodeState(thisNode(), []int{1})
	_, body, _ := bytes.Cut(good, []byte("\n"))
	for name, b := range map[string][]byte{
		"nothing":                         nil,
		"something else":                  []byte("hello\n"),
		"half of it":                      good[:len(good)/2],
		"a bit of it is another":          bytes.Replace(good, []byte("10.200.0.9"), []byte("10.200.0.8"), 1),
		"without its head":                body,
		"an older version":                bytes.Replace(good, []byte(stateMagic+" 1 "), []byte(stateMagic+" 0 "), 1),
		"a newer version":                 bytes.Replace(good, []byte(stateMagic+" 1 "), []byte(stateMagic+" 2 "), 1),
		"another node's":                  foreign(func(o *owner) { o.Node = "b" }),
		"a node's that had this name":     foreign(func(o *owner) { o.NodeUID = "n-0" }),
		"another install's, or cluster's": foreign(func(o *owner) { o.Account = "s-0" }),
		"of another shape":                wrong,
		"too large":                       append(bytes.Clone(good), make([]byte, maxState)...),
	} {
		var got savedPlan
		if err := decodeState(b, thisNode(), &got); err == nil {
			t.Errorf("%s: was taken", name)
		} else if strings.Contains(err.Error(), "BwcH") { // base64 of the key
			t.Errorf("%s: the error has a secret: %v", name, err)
		}
	}
	if _, err := encodeState(thisNode(), strings.Repeat("x", maxState)); err == nil {
		t.Error("wrote more than can be read")
	}
}

func FuzzDecodeState(f *testing.F) {
	good, _ := encodeState(thisNode(), savedFor(time.Unix(2e9, 0)))
	_, body, _ := bytes.Cut(good, []byte("\n"))
	f.Add(good, false)
	f.Add(body, true)
	f.Add([]byte(`{"of":{"node":"a","nodeUID":"n-1","account":"s-1"},"value":{"tunnels":[{"spec":{"local":[{"prefix":"x"}],"gateways":[{}]}}],"fabricNodes":[{"metadata":{"name":"a"},"spec":{"clusterID":"me"}}]}}`), true)
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		if sealed { // what is behind the checksum
			b = seal(b)
		}
		var s savedPlan
		if decodeState(b, thisNode(), &s) != nil {
			return
		}
		tunnels, at, _ := s.usable(time.Unix(2e9, 0))
		desired := Desired(Config{Node: "a"}, nil, s.FabricNodes, tunnels, s.known(), at)
		if desired == nil {
			return
		}
		_, _ = plan.Plan(*desired, plan.Observed{})
		again, err := encodeState(thisNode(), s)
		if err != nil {
			return // it became too large
		}
		var back savedPlan
		if err := decodeState(again, thisNode(), &back); err != nil {
			t.Errorf("what was read cannot be written and read: %v", err)
		}
	})
}

func stateIn(t *testing.T, node, directory, claims string, log *slog.Logger) *stateFiles {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(tokenFor(claims)), 0o600); err != nil {
		t.Fatal(err)
	}
	return openState(Config{Node: node, StateDirectory: directory, Kubernetes: &rest.Config{BearerTokenFile: token}, Log: log})
}

func TestFilesOfANode(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	directory := filepath.Join(t.TempDir(), "state")
	files := func() (out []string) {
		entries, err := os.ReadDir(directory)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || info.Mode() != 0o600 {
				t.Errorf("%s has mode %v (%v)", e.Name(), info.Mode(), err)
			}
			out = append(out, e.Name())
		}
		return out
	}
	want := func(names ...string) {
		t.Helper()
		if diff := cmp.Diff(names, files()); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
	key, now := bytes.Repeat([]byte{5}, 32), time.Now()
	s := stateIn(t, "a", directory, ownClaims, log)
	if info, err := os.Stat(directory); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v", info.Mode(), err)
	}
	if s.load() != nil || s.Load() != nil {
		t.Error("there is something in an empty directory")
	}
	_ = s.Save(key)
	want() // no tunnel is wanted yet
	s.keep(savedFor(now))
	want("key", "plan")
	before, _ := os.Stat(filepath.Join(directory, "plan"))
	s.keep(savedFor(now.Add(time.Minute)))
	if after, _ := os.Stat(filepath.Join(directory, "plan")); !os.SameFile(before, after) {
		t.Error("the same was written again")
	}
	if s.stale(now.Add(time.Minute)) || !s.stale(now.Add(savedAgain)) {
		t.Error("it is not known how old it is")
	}
	s.keep(savedFor(now.Add(savedAgain)))
	if after, _ := os.Stat(filepath.Join(directory, "plan")); os.SameFile(before, after) {
		t.Error("it was not written again when it was old")
	}

	next := stateIn(t, "a", directory, ownClaims, log)
	if p := next.load(); p == nil || !p.Confirmed.Equal(now.Add(savedAgain).Round(0)) || len(p.Tunnels) != 1 {
		t.Errorf("read %+v", p)
	}
	if got := next.Load(); !bytes.Equal(got, key) {
		t.Error("the key is another")
	}
	_ = next.Save(bytes.Repeat([]byte{6}, 32))
	if got := stateIn(t, "a", directory, ownClaims, log).Load(); !bytes.Equal(got, bytes.Repeat([]byte{6}, 32)) {
		t.Error("the replaced key was not kept")
	}
	if logged.Len() > 0 {
		t.Errorf("logged %s", logged.String())
	}
	stranger := stateIn(t, "a", directory, strings.Replace(ownClaims, "s-1", "s-2", 1), log)
	if stranger.load() != nil || stranger.Load() != nil || !strings.Contains(logged.String(), "another node, cluster or install") {
		t.Errorf("another install's state was taken: %s", logged.String())
	}
	if err := os.Chmod(filepath.Join(directory, "plan"), 0o644); err != nil {
		t.Fatal(err)
	}
	if next.load() != nil {
		t.Error("took what others can write")
	}
	if err := os.WriteFile(filepath.Join(directory, ".plan-123"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := savedFor(now)
	none.Tunnels = nil
	next.keep(none)
	want()
}

func TestANodeThatCannotKeepItsStateGoesOn(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	file := filepath.Join(t.TempDir(), "file")
	if err := errors.Join(os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if s := stateIn(t, "a", file, ownClaims, log); s != nil || !strings.Contains(logged.String(), "keeps nothing") {
		t.Errorf("a file is a directory: %s", logged.String())
	}
	logged.Reset()
	directory := filepath.Join(t.TempDir(), "state")
	s := stateIn(t, "a", directory, ownClaims, log)
	if err := os.RemoveAll(directory); err != nil {
		t.Fatal(err)
	}
	s.keep(savedFor(time.Now()))
	s.keep(savedFor(time.Now()))
	if n := strings.Count(logged.String(), "cannot keep"); n != 1 {
		t.Errorf("logged %d times: %s", n, logged.String())
	}
	var nothing *stateFiles // nowhere to keep it
	nothing.offer(savedFor(time.Now()))
	nothing.remove()
	if nothing.load() != nil || nothing.stale(time.Now()) || nothing.run(t.Context()) != nil {
		t.Error("nothing is something")
	}
}

// TestAReplacedKeyDoesNotComeBack: the key before may have leaked, and peers do not know it any more.
func TestAReplacedKeyDoesNotComeBack(t *testing.T) {
	t.Parallel()
	before, after, log := bytes.Repeat([]byte{5}, 32), bytes.Repeat([]byte{6}, 32), slog.New(slog.DiscardHandler)
	kept := func(t *testing.T) (s *stateFiles, directory string) {
		directory = filepath.Join(t.TempDir(), "state")
		s = stateIn(t, "a", directory, ownClaims, log)
		if err := s.Save(before); err != nil {
			t.Fatal(err)
		}
		s.keep(savedFor(time.Unix(2e9, 0)))
		if got := stateIn(t, "a", directory, ownClaims, log).Load(); !bytes.Equal(got, before) {
			t.Fatal("the first key was not kept")
		}
		return s, directory
	}
	for name, again := range map[string]func(s *stateFiles){
		"it is saved when that is possible again": func(s *stateFiles) { _ = s.Save(after) },
		"or with the next plan, if the same one":  func(s *stateFiles) { s.keep(savedFor(time.Unix(2e9, 0))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, directory := kept(t)
			if err := os.Rename(directory, directory+"-away"); err != nil {
				t.Fatal(err)
			}
			if s.Save(after) == nil {
				t.Error("saved it nowhere")
			}
			if err := os.Rename(directory+"-away", directory); err != nil {
				t.Fatal(err)
			}
			again(s)
			if got := stateIn(t, "a", directory, ownClaims, log).Load(); !bytes.Equal(got, after) {
				t.Error("the key in the file is another")
			}
		})
	}
	t.Run("the file of a key that is not in use any more is removed", func(t *testing.T) {
		t.Parallel()
		s, directory := kept(t)
		if s.Save(make([]byte, maxState)) == nil { // as if the disk were full
			t.Error("saved what cannot be read")
		}
		if stateIn(t, "a", directory, ownClaims, log).Load() != nil {
			t.Error("the key before is still there")
		}
	})
	t.Run("a key is written even where the plan cannot be", func(t *testing.T) {
		t.Parallel()
		directory := filepath.Join(t.TempDir(), "state")
		s := stateIn(t, "a", directory, ownClaims, log)
		if err := os.MkdirAll(filepath.Join(directory, planFile, "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, key := range [][]byte{before, after} {
			err := s.Save(key)
			if bytes.Equal(key, before) {
				s.keep(savedFor(time.Unix(2e9, 0)))
			}
			if got := stateIn(t, "a", directory, ownClaims, log).Load(); err != nil || !bytes.Equal(got, key) {
				t.Errorf("the key in the file is another (%v)", err)
			}
		}
	})
}
