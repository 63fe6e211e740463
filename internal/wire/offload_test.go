package wire

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func podRef() peering.ObjectRef {
	return peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web-0", UID: "0b4c2e1a-7f7e-4a9e-9a53-3f4f7c1f1d11"}
}

func TestObjectRefIsCheckedFieldByField(t *testing.T) {
	good := ObjectRefTo(podRef())
	tests := map[string]struct {
		edit func(*ententev1.ObjectRef)
		want string
	}{
		"a whole reference is taken":            {func(*ententev1.ObjectRef) {}, ""},
		"no kind is refused":                    {func(r *ententev1.ObjectRef) { r.Kind = 0 }, "ref.kind"},
		"a kind from the future is refused":     {func(r *ententev1.ObjectRef) { r.Kind = 99 }, "ref.kind"},
		"a pod needs a namespace":               {func(r *ententev1.ObjectRef) { r.Namespace = "" }, "ref.namespace"},
		"a namespace is a DNS label":            {func(r *ententev1.ObjectRef) { r.Namespace = "../kube-system" }, "ref.namespace"},
		"a namespace has no namespace":          {func(r *ententev1.ObjectRef) { r.Kind = ententev1.Kind_KIND_NAMESPACE }, "ref.namespace"},
		"a name is required":                    {func(r *ententev1.ObjectRef) { r.Name = "" }, "ref.name"},
		"a name has no slash":                   {func(r *ententev1.ObjectRef) { r.Name = "a/b" }, "ref.name"},
		"a name has no empty label":             {func(r *ententev1.ObjectRef) { r.Name = "a..b" }, "ref.name"},
		"a name is not longer than Kubernetes'": {func(r *ententev1.ObjectRef) { r.Name = strings.Repeat("a", 254) }, "ref.name"},
		"a UID is required":                     {func(r *ententev1.ObjectRef) { r.Uid = "" }, "ref.uid"},
		"a UID fits a label":                    {func(r *ententev1.ObjectRef) { r.Uid = strings.Repeat("a", 64) }, "ref.uid"},
		"a UID has no selector in it":           {func(r *ententev1.ObjectRef) { r.Uid = "a,b" }, "ref.uid"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := proto.Clone(good).(*ententev1.ObjectRef)
			tc.edit(m)
			_, err := ObjectRefFrom(m)
			switch {
			case tc.want == "" && err != nil:
				t.Fatalf("ObjectRefFrom: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Fatalf("ObjectRefFrom: %v, want an error about %s", err, tc.want)
			}
		})
	}
}

func TestApplyIsRefusedWhenItsHashIsNotItsOwn(t *testing.T) {
	o := peering.Object{Ref: podRef(), JSON: []byte(`{"spec":{}}`)}
	m := ApplyTo(o).GetApply()
	if got, err := ApplyFrom(m); err != nil || got.Hash() != o.Hash() {
		t.Fatalf("ApplyFrom: %v, %v", got, err)
	}
	m.Object = []byte(`{"spec":{"hostNetwork":true}}`)
	if _, err := ApplyFrom(m); err == nil {
		t.Fatal("an object with another's hash was taken")
	}
	if _, err := ApplyFrom(ApplyTo(peering.Object{Ref: podRef(), JSON: bytes.Repeat([]byte(" "), MaxObjectBytes+1)}).GetApply()); err == nil {
		t.Fatal("an oversized object was taken")
	}
}

func TestDeleteBoundsTheGracePeriod(t *testing.T) {
	long, negative := int64(1)<<60, int64(-1)
	if _, g, err := DeleteFrom(DeleteTo(podRef(), &long).GetDelete()); err != nil || *g != MaxGraceSeconds {
		t.Fatalf("grace %v, %v", g, err)
	}
	if _, _, err := DeleteFrom(DeleteTo(podRef(), &negative).GetDelete()); err == nil {
		t.Fatal("a negative grace period was taken")
	}
	if _, g, err := DeleteFrom(DeleteTo(podRef(), nil).GetDelete()); err != nil || g != nil {
		t.Fatalf("grace %v, %v", g, err)
	}
}

func TestAProvidersStatusCrossesUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z0-9]{1,20}`)
		ref := peering.ObjectRef{Kind: peering.KindPod, Namespace: word.Draw(t, "ns"), Name: word.Draw(t, "name"), UID: word.Draw(t, "uid")}
		held := peering.Held{Ref: ref, Hash: peering.Object{Ref: ref, JSON: []byte(word.Draw(t, "json"))}.Hash()}
		gotHeld, err := HeldFrom(HeldTo(held).GetExisting())
		if err != nil || gotHeld != held {
			t.Fatalf("held: %v, %v", gotHeld, err)
		}
		ack := peering.Ack{Ref: ref, Hash: held.Hash}
		if rapid.Bool().Draw(t, "refused") {
			ack.Refusal = &peering.Refusal{Reason: peering.RefusedQuota, Message: word.Draw(t, "message"), Retryable: rapid.Bool().Draw(t, "retryable")}
		}
		gotAck, err := AckFrom(AckTo(ack).GetAck())
		if diff := cmp.Diff(ack, gotAck); err != nil || diff != "" {
			t.Fatalf("ack: %v %s", err, diff)
		}
		st := peering.PodStatus{
			Ref: ref, RemoteName: word.Draw(t, "rns") + "/" + word.Draw(t, "rname"), RemoteUID: word.Draw(t, "ruid"),
			Status: []byte(`{"phase":"Running"}`), Gone: rapid.Bool().Draw(t, "gone"), DeletionTimestamp: "2026-11-20T23:00:00Z",
		}
		gotStatus, err := PodStatusFrom(PodStatusTo(st).GetStatus())
		if diff := cmp.Diff(st, gotStatus); err != nil || diff != "" {
			t.Fatalf("status: %v %s", err, diff)
		}
		ev := peering.PodEvent{Ref: ref, Type: "Warning", Reason: "BackOff", Message: word.Draw(t, "text"), Count: rapid.Int32Range(1, 1000).Draw(t, "count")}
		gotEvent, err := PodEventFrom(PodEventTo(ev).GetEvent())
		if err != nil || gotEvent != ev {
			t.Fatalf("event: %v, %v", gotEvent, err)
		}
	})
}

func TestEmptyOffloadMessagesAreErrors(t *testing.T) {
	if _, err := ObjectRefFrom(nil); err == nil {
		t.Error("ObjectRefFrom(nil) is not an error")
	}
	if _, err := ApplyFrom(nil); err == nil {
		t.Error("ApplyFrom(nil) is not an error")
	}
	if _, _, err := DeleteFrom(nil); err == nil {
		t.Error("DeleteFrom(nil) is not an error")
	}
	if _, err := HeldFrom(nil); err == nil {
		t.Error("HeldFrom(nil) is not an error")
	}
	if _, err := AckFrom(nil); err == nil {
		t.Error("AckFrom(nil) is not an error")
	}
	if _, err := PodStatusFrom(nil); err == nil {
		t.Error("PodStatusFrom(nil) is not an error")
	}
	if _, err := PodEventFrom(nil); err == nil {
		t.Error("PodEventFrom(nil) is not an error")
	}
}

// FuzzSyncRequest: whatever arrives is an error or comes back the same.
func FuzzSyncRequest(f *testing.F) {
	grace := int64(30)
	for _, m := range []*ententev1.SyncRequest{
		OpenTo("c-1"), ApplyTo(peering.Object{Ref: podRef(), JSON: []byte("{}")}), DeleteTo(podRef(), &grace), {},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m ententev1.SyncRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		if o, err := ApplyFrom(m.GetApply()); err == nil {
			again, err := ApplyFrom(ApplyTo(o).GetApply())
			if diff := cmp.Diff(o, again); err != nil || diff != "" {
				t.Fatalf("apply: %v %s", err, diff)
			}
		}
		if r, g, err := DeleteFrom(m.GetDelete()); err == nil {
			r2, g2, err := DeleteFrom(DeleteTo(r, g).GetDelete())
			if err != nil || r != r2 || !cmp.Equal(g, g2) {
				t.Fatalf("delete: %v %v %v %v %v", err, r, r2, g, g2)
			}
		}
	})
}

// FuzzSyncResponse: whatever arrives is an error or comes back the same.
func FuzzSyncResponse(f *testing.F) {
	for _, m := range []*ententev1.SyncResponse{
		HeldTo(peering.Held{Ref: podRef()}), SyncedTo(), AckTo(peering.Ack{Ref: podRef(), Refusal: &peering.Refusal{Reason: peering.RefusedQuota}}),
		PodStatusTo(peering.PodStatus{Ref: podRef(), Status: []byte("{}")}), PodEventTo(peering.PodEvent{Ref: podRef(), Type: "Normal"}),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m ententev1.SyncResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		if h, err := HeldFrom(m.GetExisting()); err == nil {
			if again, err := HeldFrom(HeldTo(h).GetExisting()); err != nil || again != h {
				t.Fatalf("held: %v", err)
			}
		}
		if a, err := AckFrom(m.GetAck()); err == nil {
			again, err := AckFrom(AckTo(a).GetAck())
			if diff := cmp.Diff(a, again); err != nil || diff != "" {
				t.Fatalf("ack: %v %s", err, diff)
			}
		}
		if s, err := PodStatusFrom(m.GetStatus()); err == nil {
			again, err := PodStatusFrom(PodStatusTo(s).GetStatus())
			if diff := cmp.Diff(s, again); err != nil || diff != "" {
				t.Fatalf("status: %v %s", err, diff)
			}
		}
		if e, err := PodEventFrom(m.GetEvent()); err == nil {
			if again, err := PodEventFrom(PodEventTo(e).GetEvent()); err != nil || again != e {
				t.Fatalf("event: %v %v %v", err, e, again)
			}
		}
	})
}
