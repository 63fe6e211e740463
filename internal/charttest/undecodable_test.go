package charttest

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// testUndecodable writes text that an agent could not decode, or that makes no sense, into policies and requests.
func (c cluster) testUndecodable(t *testing.T) {
	for _, row := range []struct {
		name, kind, spec string
		// want is in the API server's answer; empty means that it accepts the object.
		want string
	}{
		{"a notice in days", "PeeringPolicy", `{"notice": "1d"}`, "from 0s to 744h, in hours, minutes and seconds: write 720h, not 30d"},
		{"a notice below zero", "PeeringPolicy", `{"notice": "-1h"}`, "from 0s to 744h"},
		{"a notice of two months", "PeeringPolicy", `{"notice": "1440h"}`, "from 0s to 744h"},
		{"no notice", "PeeringPolicy", `{"notice": "0s"}`, ""},
		{"no notice, as a bare number", "PeeringPolicy", `{"notice": "0"}`, ""},
		{"contracts in days", "PeeringPolicy", `{"contractDuration": "30d"}`, "from 1s to 87840h, in hours, minutes and seconds: write 720h, not 30d"},
		{"contracts below zero", "PeeringPolicy", `{"contractDuration": "-5h"}`, "from 1s to 87840h"},
		{"contracts of no duration", "PeeringPolicy", `{"contractDuration": "0s"}`, "from 1s to 87840h"},
		{"contracts beyond what Go can count", "PeeringPolicy", `{"contractDuration": "99999999h"}`, "contractDuration"},
		{"contracts of an hour and a half", "PeeringPolicy", `{"contractDuration": "1h30m0.5s"}`, ""},
		{"statements in days", "PeeringPolicy", `{"statementPeriod": "1d"}`, "from 1m to 744h, in hours"},
		{"fences in days", "PeeringPolicy", `{"minFence": "1d"}`, "from 3m to 24h, in hours"},
		{"a request in days", "PeeringRequest", `{"foreignCluster": "x", "duration": "1d"}`, "from 1s to 87840h, in hours"},
		{"a request of ten minutes", "PeeringRequest", `{"foreignCluster": "x", "duration": "10m"}`, ""},
		{"a wait in days", "NamespaceOffloading", `{"unschedulable": {"after": "1d"}}`, "from 10s to 24h, in hours"},
		{"a loss in days", "NamespaceOffloading", `{"peerLost": {"action": "Evict", "after": "1d"}}`, "from 10s to 168h, in hours"},
		{"a fence in days", "NamespaceOffloading", `{"peerLost": {"action": "Fence", "after": "1d"}}`, "from 10s to 168h, in hours"},
		{"an exponent with a point", "PeeringPolicy", `{"limits": {"resources": {"cpu": "1e1.5"}}}`, "an amount is a number of Kubernetes"},
		{"an exponent with a point before it", "PeeringRequest", `{"foreignCluster": "x", "resources": {"cpu": "1.E5."}}`, "an amount is a number of Kubernetes"},
		{"an exponent that no number has", "PeeringPolicy", `{"limits": {"resources": {"cpu": "1e99999999999999999999"}}}`, "an amount is a number of Kubernetes"},
		{"a limit below zero", "PeeringPolicy", `{"limits": {"resources": {"cpu": -1}}}`, "not below zero"},
		{"a total below zero", "PeeringPolicy", `{"limits": {"total": {"resources": {"cpu": "-1"}}}}`, "not below zero"},
		{"a pool's limit below zero", "PeeringPolicy", `{"pools": [{"name": "a", "nodeSelector": {"a": "b"}, "limits": {"resources": {"cpu": "-1"}}}]}`, "not below zero"},
		{"a bound below zero", "PeeringPolicy", `{"limitRange": {"container": {"max": {"cpu": "-1"}}}}`, "not below zero"},
		{"a bound with an odd exponent", "PeeringPolicy", `{"limitRange": {"pod": {"max": {"cpu": "1e1.5"}}}}`, "an amount is a number of Kubernetes"},
		{"a request below zero", "PeeringRequest", `{"foreignCluster": "x", "resources": {"cpu": "-1"}}`, "not below zero"},
		{"amounts of all forms", "PeeringPolicy", `{"limits": {"resources": {"cpu": 0, "memory": "1.5Gi", "pods": "1E", "example.com/a": "2Ei", "nvidia.com/gpu": 2}}}`, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			var spec map[string]any
			if err := json.Unmarshal([]byte(row.spec), &spec); err != nil {
				t.Fatal(err)
			}
			o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
			o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(row.kind))
			o.SetName(name("undecodable"))
			if row.kind == "NamespaceOffloading" {
				o.SetName("offloading")
				o.SetNamespace("default")
			}
			err := c.admin.Create(t.Context(), o, client.DryRunAll)
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want == "":
				if typed, err := scheme(t).New(o.GroupVersionKind()); err != nil {
					t.Error(err)
				} else if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
					t.Errorf("it was accepted, and does not decode: %v", err)
				}
			case err == nil || !strings.Contains(err.Error(), row.want):
				t.Errorf("%v, want %q", err, row.want)
			}
		})
	}
}
