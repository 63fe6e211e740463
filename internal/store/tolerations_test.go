package store

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestAPoolToleratesNoTaintsButThoseOfItsOwnNodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec v1alpha1.PoolToleration
		says string
	}{
		"a taint with any value":             {v1alpha1.PoolToleration{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}, ""},
		"one with a value":                   {v1alpha1.PoolToleration{Key: "dedicated", Operator: "Equal", Value: "shared"}, ""},
		"one with a value, as by default":    {v1alpha1.PoolToleration{Key: "dedicated", Value: "shared", Effect: "NoExecute"}, ""},
		"one without a value":                {v1alpha1.PoolToleration{Key: "node-role.kubernetes.io/control-plane"}, ""},
		"what has a name like a virtual one": {v1alpha1.PoolToleration{Key: "notentente.dev/x"}, ""},
		"a name without a domain":            {v1alpha1.PoolToleration{Key: "entente.dev"}, ""},
		"all taints":                         {v1alpha1.PoolToleration{Operator: "Exists"}, "tolerates all taints"},
		"all taints of an effect":            {v1alpha1.PoolToleration{Operator: "Exists", Effect: "NoSchedule"}, "tolerates all taints"},
		"virtual nodes":                      {v1alpha1.PoolToleration{Key: v1alpha1.TaintVirtualNode, Operator: "Exists"}, "passed on"},
		"virtual nodes that lose pods":       {v1alpha1.PoolToleration{Key: v1alpha1.TaintLosingPods, Value: "true"}, "passed on"},
		"what is below that domain":          {v1alpha1.PoolToleration{Key: "peer.entente.dev/x"}, "passed on"},
		"nodes that are not ready":           {v1alpha1.PoolToleration{Key: corev1.TaintNodeNotReady, Operator: "Exists"}, "unhealthy"},
		"nodes that are full":                {v1alpha1.PoolToleration{Key: corev1.TaintNodeMemoryPressure, Operator: "Exists"}, "unhealthy"},
		"nodes that a cloud takes away":      {v1alpha1.PoolToleration{Key: "node.cloudprovider.kubernetes.io/shutdown", Operator: "Exists"}, "unhealthy"},
		"what is not a key":                  {v1alpha1.PoolToleration{Key: "a b"}, "not the key"},
		"an operator that there is not":      {v1alpha1.PoolToleration{Key: "a", Operator: "Gt", Value: "1"}, "neither"},
		"any value, and one":                 {v1alpha1.PoolToleration{Key: "a", Operator: "Exists", Value: "1"}, "no value"},
		"a malformed value":                  {v1alpha1.PoolToleration{Key: "a", Value: "a b"}, `"a b" is not the value of a taint`},
		"an effect that there is not":        {v1alpha1.PoolToleration{Key: "a", Effect: "NoAdmit"}, "unknown taint effect"},
	} {
		got, err := ReadTolerations([]v1alpha1.PoolToleration{tt.spec})
		switch {
		case tt.says == "" && (err != nil || len(got) != 1 || got[0].Operator == ""):
			t.Errorf("%s: %+v, %v", name, got, err)
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
	}
	if _, err := ReadTolerations(make([]v1alpha1.PoolToleration, maxTolerations+1)); err == nil || !strings.Contains(err.Error(), "more than 8") {
		t.Errorf("too many: %v", err)
	}
}

func TestAContractKeepsTolerations(t *testing.T) {
	t.Parallel()
	gpu := corev1.Toleration{Key: "gpu", Operator: "Exists", Effect: "NoSchedule"}
	c := &v1alpha1.Contract{}
	for _, want := range [][]corev1.Toleration{nil, {gpu}, {gpu, {Key: "dedicated", Operator: "Equal", Value: "x"}}, nil} {
		if err := SetTolerations(c, want); err != nil {
			t.Fatal(err)
		}
		if got := Tolerations(c); !slices.Equal(got, want) {
			t.Errorf("kept %+v, want %+v", got, want)
		}
	}
	// Another client wrote it.
	all := []corev1.Toleration{
		{Operator: "Exists"}, gpu, {Key: v1alpha1.TaintVirtualNode, Operator: "Exists"}, {Key: "a", Operator: "Exists", TolerationSeconds: new(int64(1))},
	}
	if err := SetTolerations(c, all); err != nil {
		t.Fatal(err)
	}
	if got := Tolerations(c); !slices.Equal(got, []corev1.Toleration{gpu}) {
		t.Errorf("takes %+v", got)
	}
	c.Annotations[annotationTolerations] = "some"
	if got := Tolerations(c); got != nil {
		t.Errorf("reads %+v", got)
	}
}
