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
