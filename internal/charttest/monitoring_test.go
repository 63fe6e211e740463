package charttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// The kinds of the Prometheus operator are read as far as they name what is ours.
type monitor struct {
	Spec struct {
		Selector            struct{ MatchLabels map[string]string }
		Endpoints           []monitored
		PodMetricsEndpoints []monitored
	}
}

type monitored struct {
	Port, Scheme  string
	Authorization struct{ Credentials struct{ Name string } }
	TLSConfig     struct {
		CA                 struct{ ConfigMap struct{ Name string } }
		ServerName         string
		InsecureSkipVerify bool
	}
}

func TestMonitorsNamePortsThatThereAre(t *testing.T) {
	t.Parallel()
	out, err := template(t, "--set", "monitoring.nodes.enabled=true,monitoring.monitors.enabled=true,monitoring.alerts.enabled=true,monitoring.dashboard.enabled=true",
		"--set", "monitoring.alerts.labels.release=prometheus")
	if err != nil {
		t.Fatal(err)
	}
	pods, services := map[string]corev1.PodTemplateSpec{}, map[string]corev1.Service{}
	for _, d := range all[*appsv1.Deployment](render(t)) {
		pods[d.Name] = d.Spec.Template
	}
	monitors, kinds := map[string]monitor{}, map[string]unstructured.Unstructured{}
	for reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(out))); ; {
		doc, err := reader.Read()
		if err != nil {
			break
		}
		var object unstructured.Unstructured
		if err := yaml.Unmarshal(doc, &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		switch object.GetKind() {
		case "DaemonSet":
			var d appsv1.DaemonSet
			if err := yaml.Unmarshal(doc, &d); err != nil {
				t.Fatal(err)
			}
			pods[d.Name] = d.Spec.Template
		case "Service":
			var s corev1.Service
			if err := yaml.Unmarshal(doc, &s); err != nil {
				t.Fatal(err)
			}
			services[s.Name] = s
		case "ServiceMonitor", "PodMonitor":
			var m monitor
			if err := yaml.Unmarshal(doc, &m); err != nil {
				t.Fatal(err)
			}
			monitors[object.GetName()] = m
		default:
			kinds[object.GetKind()+" "+object.GetName()] = object
		}
	}
	if len(monitors) != 3 {
		t.Fatalf("%d monitors, want those of the agent, the resolver and the fabric", len(monitors))
	}
	for name, m := range monitors {
		for _, e := range slices.Concat(m.Spec.Endpoints, m.Spec.PodMetricsEndpoints) {
			found := false
			for _, c := range pods[name].Spec.Containers {
				found = found || slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == e.Port })
			}
			found = found || slices.ContainsFunc(services[name].Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port })
			if !found {
				t.Errorf("%s: neither a container nor a Service has a port %q", name, e.Port)
			}
			if e.Scheme == "https" && (e.TLSConfig.InsecureSkipVerify || e.TLSConfig.CA.ConfigMap.Name != "entente-ca" || e.TLSConfig.ServerName != name+"."+namespace+".svc") {
				t.Errorf("%s: the token is shown to who does not prove to be %s: %+v", name, name, e.TLSConfig)
			}
			if token := e.Authorization.Credentials.Name; e.Scheme == "https" && kinds["Secret "+token].Object == nil {
				t.Errorf("%s: there is no Secret %q", name, token)
			}
		}
		for key, value := range m.Spec.Selector.MatchLabels {
			if pods[name].Labels[key] != value {
				t.Errorf("%s selects %s=%s, and its pods have %v", name, key, value, pods[name].Labels)
			}
		}
	}
	rule := kinds["PrometheusRule entente"]
	if groups, _, err := unstructured.NestedSlice(rule.Object, "spec", "groups"); err != nil || len(groups) != 1 || rule.GetLabels()["release"] != "prometheus" {
		t.Errorf("%d groups of alerts, %v, labels %v", len(groups), err, rule.GetLabels())
	}
	board := kinds["ConfigMap entente-dashboard"]
	text, _, _ := unstructured.NestedString(board.Object, "data", "entente.json")
	if !json.Valid([]byte(text)) || board.GetLabels()["grafana_dashboard"] != "1" {
		t.Errorf("no dashboard in\n%s", text)
	}
}

func TestNodesMayReviewTokensOnlyWithMetrics(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"false": false, "true": true} {
		out, err := template(t, "--set", "monitoring.nodes.enabled="+value, "--show-only", "templates/fabric-rbac.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(out, []byte("tokenreviews")); got != want {
			t.Errorf("with metrics of nodes %s they may review tokens: %t", value, got)
		}
	}
}
