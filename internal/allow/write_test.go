package allow

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestAnEarlierEndIsNotDelayed(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	ends := func(in ...time.Duration) (out []v1alpha1.ContractEnd) {
		for i, d := range in {
			out = append(out, v1alpha1.ContractEnd{Contract: string(rune('a' + i)), Time: metav1.NewTime(now.Add(d))})
		}
		return out
	}
	for name, tt := range map[string]struct {
		has, wants []v1alpha1.ContractEnd
		want       bool
	}{
		"the same":             {ends(1, 2), ends(1, 2), false},
		"later":                {ends(1, 2), ends(1, 3), false},
		"earlier":              {ends(2, 2), ends(3, 1), true},
		"another contract":     {ends(2), ends(2, 1), false},
		"a contract less":      {ends(2, 2), ends(2), false},
		"an end, and had none": {nil, ends(2), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Closes(&v1alpha1.TunnelSpec{PeerID: "p", ContractEnds: tt.has}, &v1alpha1.TunnelSpec{PeerID: "p", ContractEnds: tt.wants}, nil); got != tt.want {
				t.Errorf("closes: %v, want %v", got, tt.want)
			}
		})
	}
	if Closes(&v1alpha1.TunnelSpec{}, &v1alpha1.TunnelSpec{PeerID: "p", ContractEnds: ends(1)}, nil) {
		t.Error("a new tunnel closes something")
	}
}

func TestATunnelIsWrittenForTheHomeWhosePodsAloneChange(t *testing.T) {
	t.Parallel()
	open := func(home, namespace string, from ...string) v1alpha1.Exposure {
		return v1alpha1.Exposure{Contract: "c", Namespace: namespace, HomePeerID: home, From: from, To: []v1alpha1.Destination{{Addresses: []string{"10.0.0.9"}, AnyPort: home == ""}}}
	}
	base := []v1alpha1.Exposure{open("", "own", "10.240.0.1"), open("b", "shop", "10.240.0.2"), open("c", "shop", "10.240.0.3")}
	for what, tc := range map[string]struct {
		change func(*v1alpha1.TunnelSpec)
		want   string
	}{
		"nothing":         {func(*v1alpha1.TunnelSpec) {}, ""},
		"a home's pods":   {func(s *v1alpha1.TunnelSpec) { s.Allow[2] = open("c", "shop", "10.240.0.4") }, "c"},
		"a home has more": {func(s *v1alpha1.TunnelSpec) { s.Allow = append(s.Allow, open("d", "shop", "10.240.0.4")) }, "d"},
		"a home has less": {func(s *v1alpha1.TunnelSpec) { s.Allow = s.Allow[:2] }, "c"},
		"two homes": {func(s *v1alpha1.TunnelSpec) {
			s.Allow = []v1alpha1.Exposure{s.Allow[0], open("b", "shop"), open("c", "shop")}
		}, "b"},
		"a home's and the peer's": {func(s *v1alpha1.TunnelSpec) { s.Allow = []v1alpha1.Exposure{open("", "own"), open("b", "shop")} }, ""},
		"the peer's":              {func(s *v1alpha1.TunnelSpec) { s.Allow[0] = open("", "own", "10.240.0.9") }, ""},
		"a home's and when it is over": {func(s *v1alpha1.TunnelSpec) {
			s.Allow[1] = open("b", "shop")
			s.ContractEnds = []v1alpha1.ContractEnd{{Contract: "c"}}
		}, ""},
		"a home's and the gateways": {func(s *v1alpha1.TunnelSpec) {
			s.Allow[1] = open("b", "shop")
			s.Gateways = []v1alpha1.Gateway{{Name: "n"}}
		}, ""},
		"there was no tunnel": {func(s *v1alpha1.TunnelSpec) { *s = v1alpha1.TunnelSpec{} }, ""},
	} {
		current := &v1alpha1.TunnelSpec{PeerID: "a", Allow: base}
		desired := current.DeepCopy()
		tc.change(desired)
		if got := Home(current, desired); got != tc.want {
			t.Errorf("%s: written for %q, want %q", what, got, tc.want)
		}
		if got := Home(desired, current); got != tc.want {
			t.Errorf("%s, the other way round: written for %q, want %q", what, got, tc.want)
		}
	}
}
