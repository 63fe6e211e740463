package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func serviceWith(tb testing.TB, endpoints []peering.ServiceEndpoint) peering.Object {
	tb.Helper()
	text, err := json.Marshal(peering.ServiceObject{Labels: map[string]string{"app": "web"}, Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}, Endpoints: endpoints})
	if err != nil {
		tb.Fatal(err)
	}
	return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: "web", UID: "u"}, JSON: text}
}

func endpointsOf(n int) (out []peering.ServiceEndpoint) {
	for i := range n {
		out = append(out, endpointOf(i))
	}
	return out
}

func endpointOf(i int) peering.ServiceEndpoint {
	return peering.ServiceEndpoint{
		Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250), Ready: true, Serving: true, Ports: map[string]int32{"http": 8080},
		PodUID: fmt.Sprintf("0b4c2e1a-7f7e-4a9e-9a53-3f4f7c%06d", i),
	}
}

// patched sends an object as changes of another one.
func patched(tb testing.TB, base, next peering.Object) (size int, result peering.Object) {
	tb.Helper()
	m := PatchTo(next, base.JSON, base.Hash())
	encoded, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	if err := CheckParts(encoded, m); err != nil {
		tb.Fatal(err)
	}
	if m.GetPatch() == nil {
		result, err = ApplyFrom(m.GetApply())
	} else {
		var p Patch
		if p, err = PatchFrom(m.GetPatch()); err == nil {
			if p.Base != base.Hash() || p.Hash != next.Hash() || p.Size(len(base.JSON)) < int64(len(next.JSON)) {
				tb.Fatalf("the patch is of %s to %s", p.Base, p.Hash)
			}
			result, err = p.Object(base.JSON)
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	return len(encoded), result
}

func TestAPatchOfOneEndpointIsSmall(t *testing.T) {
	t.Parallel()
	base := serviceWith(t, endpointsOf(5000))
	for name, change := range map[string]func([]peering.ServiceEndpoint) []peering.ServiceEndpoint{
		"one becomes unready": func(e []peering.ServiceEndpoint) []peering.ServiceEndpoint { e[2500].Ready = false; return e },
		"the first goes":      func(e []peering.ServiceEndpoint) []peering.ServiceEndpoint { return e[1:] },
		"the last goes":       func(e []peering.ServiceEndpoint) []peering.ServiceEndpoint { return e[:4999] },
		"one comes":           func(e []peering.ServiceEndpoint) []peering.ServiceEndpoint { return append(e, endpointOf(5000)) },
		"a hundred change places": func(e []peering.ServiceEndpoint) []peering.ServiceEndpoint {
			for i := range 100 {
				e[50*i].Terminating = true
			}
			return e
		},
	} {
		next := serviceWith(t, change(endpointsOf(5000)))
		size, got := patched(t, base, next)
		if got.Hash() != next.Hash() {
			t.Errorf("%s: another object came out", name)
		}
		if most := len(next.JSON) / 20; size > most {
			t.Errorf("%s: %d bytes are sent of %d, want at most %d", name, size, len(next.JSON), most)
		}
		t.Logf("%s: %d bytes are sent of %d", name, size, len(next.JSON))
	}
}

func TestAPatchMakesTheWholeObject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		list := endpointsOf(rapid.IntRange(30, 200).Draw(r, "endpoints"))
		base := serviceWith(t, list)
		for range rapid.IntRange(1, 10).Draw(r, "steps") {
			for range rapid.IntRange(0, 30).Draw(r, "changes") {
				if len(list) == 0 {
					list = endpointsOf(100)
				}
				i := rapid.IntRange(0, len(list)-1).Draw(r, "at")
				switch rapid.IntRange(0, 3).Draw(r, "change") {
				case 0:
					list[i].Ready = !list[i].Ready
				case 1:
					list = append(list[:i:i], list[i+1:]...)
				case 2:
					list = append(list[:i:i], append([]peering.ServiceEndpoint{endpointOf(rapid.IntRange(0, 60000).Draw(r, "new"))}, list[i:]...)...)
				case 3:
					list[i], list[0] = list[0], list[i]
				}
			}
			next := serviceWith(t, list)
			if _, got := patched(t, base, next); got.Hash() != next.Hash() {
				r.Fatalf("%s became %s", next.JSON, got.JSON)
			}
			base = next
		}
	})
}

func TestHostilePatchesAreRefused(t *testing.T) {
	t.Parallel()
	base := serviceWith(t, endpointsOf(100))
	good := func() *ententev1.SyncRequest_Patch {
		return PatchTo(serviceWith(t, endpointsOf(99)), base.JSON, base.Hash()).GetPatch()
	}
	pod, size := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: "u"}, uint32(len(base.JSON))
	for name, edit := range map[string]func(*ententev1.SyncRequest_Patch){
		"no reference":               func(m *ententev1.SyncRequest_Patch) { m.Ref = nil },
		"a pod":                      func(m *ententev1.SyncRequest_Patch) { m.Ref = ObjectRefTo(pod) },
		"a short base":               func(m *ententev1.SyncRequest_Patch) { m.Base = m.GetBase()[1:] },
		"a long hash":                func(m *ententev1.SyncRequest_Patch) { m.Hash = append(m.GetHash(), 1) },
		"another hash":               func(m *ententev1.SyncRequest_Patch) { m.Hash = make([]byte, 32) },
		"more kept than there is":    func(m *ententev1.SyncRequest_Patch) { m.GetSplices()[0].Keep = size + 1 },
		"more removed than there is": func(m *ententev1.SyncRequest_Patch) { m.GetSplices()[0].Remove = 1<<32 - 1 },
		"an overflow": func(m *ententev1.SyncRequest_Patch) {
			m.GetSplices()[0].Keep, m.GetSplices()[0].Remove = 1<<32-1, 1<<32-1
		},
		"too many splices": func(m *ententev1.SyncRequest_Patch) {
			for range maxSplices + 1 {
				m.Splices = append(m.GetSplices(), &ententev1.SyncRequest_Splice{})
			}
		},
		"a large result": func(m *ententev1.SyncRequest_Patch) {
			m.Splices = []*ententev1.SyncRequest_Splice{{Keep: 100, Insert: make([]byte, MaxObjectBytes-99)}}
		},
		"much that is inserted": func(m *ententev1.SyncRequest_Patch) {
			for range 3 {
				m.Splices = append(m.GetSplices(), &ententev1.SyncRequest_Splice{Insert: make([]byte, MaxObjectBytes/2)})
			}
		},
		"an empty result": func(m *ententev1.SyncRequest_Patch) { m.Splices = []*ententev1.SyncRequest_Splice{{Remove: size}} },
	} {
		m := good()
		edit(m)
		p, err := PatchFrom(m)
		if err == nil {
			_, err = p.Object(base.JSON)
		}
		if err == nil {
			t.Errorf("%s is not refused", name)
		}
	}
	if p, err := PatchFrom(good()); err != nil {
		t.Error(err)
	} else if _, err := p.Object(base.JSON); err != nil {
		t.Error(err)
	}
	if _, err := PatchFrom(nil); err == nil {
		t.Error("nothing is not refused")
	}
}

// A result that is remembered counts with its length, so it must not hold the room of all that was removed.
func TestTheResultOfAPatchHoldsNoMoreThanItHas(t *testing.T) {
	t.Parallel()
	base := serviceWith(t, endpointsOf(5000))
	p, err := PatchFrom(PatchTo(serviceWith(t, endpointsOf(40)), base.JSON, base.Hash()).GetPatch())
	if err != nil {
		t.Fatal(err)
	}
	o, err := p.Object(base.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if spare := cap(o.JSON) - len(o.JSON); spare > len(o.JSON) {
		t.Errorf("a result of %d bytes holds %d more", len(o.JSON), spare)
	}
}

// FuzzPatch: whatever arrives is an error or makes an object that has the hash.
func FuzzPatch(f *testing.F) {
	base := serviceWith(f, endpointsOf(60))
	for _, n := range []int{30, 59, 60, 61} {
		b, err := proto.Marshal(PatchTo(serviceWith(f, endpointsOf(n)), base.JSON, base.Hash()).GetPatch())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte("{}"))
	}
	f.Fuzz(func(t *testing.T, b, other []byte) {
		for _, base := range [][]byte{base.JSON, other} {
			var m ententev1.SyncRequest_Patch
			if proto.Unmarshal(b, &m) != nil {
				return
			}
			p, err := PatchFrom(&m)
			if err != nil {
				return
			}
			if o, err := p.Object(base); err == nil && (o.Hash() != p.Hash || len(o.JSON) > MaxObjectBytes) {
				t.Fatalf("it made %d bytes", len(o.JSON))
			}
		}
		splices, _ := diff(b, other)
		p := Patch{splices: splices}
		o, err := p.Object(b)
		if len(other) >= 2 && !bytes.Equal(o.JSON, other) && err == nil {
			t.Fatal("the changes make something else")
		}
	})
}

func BenchmarkAPatchOfOneEndpoint(b *testing.B) {
	base := serviceWith(b, endpointsOf(5000))
	list := endpointsOf(5000)
	list[2500].Ready = false
	next := serviceWith(b, list)
	var size int
	for b.Loop() {
		size, _ = patched(b, base, next)
	}
	b.ReportMetric(float64(size), "sent-B/op")
	b.ReportMetric(float64(len(next.JSON)), "whole-B/op")
}
