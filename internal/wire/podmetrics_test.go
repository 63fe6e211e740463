package wire

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func podMetrics(pods, containers int) peering.ContractMetrics {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	m := peering.ContractMetrics{Time: at}
	for i := range pods {
		p := peering.PodMetrics{UID: fmt.Sprintf("7f0c1d2e-0000-4000-8000-%012d", i), Time: at.Add(-time.Second), Window: 15 * time.Second}
		for j := range containers {
			p.Containers = append(p.Containers, peering.ContainerMetrics{Name: fmt.Sprint("c-", j), Nanocores: uint64(i), Memory: uint64(j)})
		}
		m.Pods = append(m.Pods, p)
	}
	return m
}

// received sends metrics as gRPC would, and reads what comes.
func received(t *testing.T, m peering.ContractMetrics) (peering.ContractMetrics, int) {
	t.Helper()
	var got peering.ContractMetrics
	messages := PodMetricsTo(m)
	for _, msg := range messages {
		b, err := proto.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckParts(b, &ententev1.PodMetricsResponse{}); err != nil || len(b) > MaxOffloadMessage {
			t.Fatalf("a message of %d bytes: %v", len(b), err)
		}
		if err := proto.Unmarshal(b, msg); err != nil {
			t.Fatal(err)
		}
		if err := PodMetricsFrom(&got, msg); err != nil {
			t.Fatal(err)
		}
	}
	return got, len(messages)
}

func TestPodMetricsCross(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{0, 0}, {1, 1}, {3, 0}, {5000, 2}, {MaxMetricsPods, 1}, {100, MaxMetricsContainers}} {
		m := podMetrics(size[0], size[1])
		got, _ := received(t, m)
		for i := range m.Pods {
			if m.Pods[i].Containers == nil {
				m.Pods[i].Containers = []peering.ContainerMetrics{}
			}
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Errorf("%v: %s", size, d)
		}
	}
}

// A provider sends no more than a consumer takes, and nothing that it would refuse.
func TestPodMetricsBeyondLimitsAreLeftOut(t *testing.T) {
	t.Parallel()
	got, messages := received(t, podMetrics(MaxMetricsPods+1, MaxMetricsContainers))
	if messages != MaxMetricsMessages || len(got.Pods) == 0 || len(got.Pods) > MaxMetricsPods {
		t.Errorf("%d pods crossed in %d messages", len(got.Pods), messages)
	}
	m := podMetrics(6, 1)
	m.Pods[0].Window = 0
	m.Pods[1].Window = MaxMetricsWindow + 1
	m.Pods[2].Containers[0].Nanocores = MaxNanocores + 1
	m.Pods[3].Containers[0].Memory = MaxMetricsBytes + 1
	m.Pods[4].UID = ""
	if got, _ := received(t, m); len(got.Pods) != 1 || got.Pods[0].UID != m.Pods[5].UID {
		t.Errorf("of six pods, one of which makes sense, crossed %v", got.Pods)
	}
}

func TestInvalidPodMetricsAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ententev1.PodMetricsResponse){
		"no time of the answer":     func(m *ententev1.PodMetricsResponse) { m.SendTime = nil },
		"a time that there is not":  func(m *ententev1.PodMetricsResponse) { m.SendTime = &timestamppb.Timestamp{Nanos: -1} },
		"a pod without UID":         func(m *ententev1.PodMetricsResponse) { m.Pods[0].Uid = "" },
		"a UID with a line break":   func(m *ententev1.PodMetricsResponse) { m.Pods[0].Uid = "a\nb" },
		"a pod without time":        func(m *ententev1.PodMetricsResponse) { m.Pods[0].Time = nil },
		"no window":                 func(m *ententev1.PodMetricsResponse) { m.Pods[0].Window = nil },
		"a negative window":         func(m *ententev1.PodMetricsResponse) { m.Pods[0].Window = durationpb.New(-time.Second) },
		"a window of a day":         func(m *ententev1.PodMetricsResponse) { m.Pods[0].Window = durationpb.New(24 * time.Hour) },
		"a name with a quote":       func(m *ententev1.PodMetricsResponse) { m.Pods[0].Containers[0].Name = `a"b` },
		"a name that is too long":   func(m *ententev1.PodMetricsResponse) { m.Pods[0].Containers[0].Name = strings.Repeat("a", 64) },
		"a container without name":  func(m *ententev1.PodMetricsResponse) { m.Pods[0].Containers[0].Name = "" },
		"a million cores":           func(m *ententev1.PodMetricsResponse) { m.Pods[0].Containers[0].CpuNanocores = 1e15 },
		"more memory than there is": func(m *ententev1.PodMetricsResponse) { m.Pods[0].Containers[0].MemoryBytes = 1 << 63 },
		"too many containers": func(m *ententev1.PodMetricsResponse) {
			m.Pods[0].Containers = make([]*ententev1.PodMetricsResponse_Container, MaxMetricsContainers+1)
		},
		"too many pods": func(m *ententev1.PodMetricsResponse) {
			m.Pods = make([]*ententev1.PodMetricsResponse_Pod, MaxMetricsPods+1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := PodMetricsTo(podMetrics(1, 1))[0]
			change(m)
			var got peering.ContractMetrics
			if err := PodMetricsFrom(&got, m); err == nil {
				t.Errorf("it was taken: %+v", got)
			}
		})
	}
}

// FuzzPodMetrics decodes whatever a provider may send, in two messages.
func FuzzPodMetrics(f *testing.F) {
	for _, m := range PodMetricsTo(podMetrics(3, 2)) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		var got peering.ContractMetrics
		for _, b := range [][]byte{one, two} {
			var m ententev1.PodMetricsResponse
			if CheckParts(b, &m) != nil || proto.Unmarshal(b, &m) != nil || PodMetricsFrom(&got, &m) != nil {
				return
			}
		}
		if got.Time.IsZero() || len(got.Pods) > MaxMetricsPods {
			t.Errorf("answered at %s, %d pods", got.Time, len(got.Pods))
		}
		for _, p := range got.Pods {
			if p.UID == "" || p.Window < MinMetricsWindow || p.Window > MaxMetricsWindow || len(p.Containers) > MaxMetricsContainers {
				t.Errorf("%+v was taken", p)
			}
			for _, c := range p.Containers {
				if c.Name == "" || c.Nanocores > MaxNanocores || c.Memory > MaxMetricsBytes {
					t.Errorf("%+v was taken", c)
				}
			}
		}
		// What was taken can be sent on.
		var again peering.ContractMetrics
		for _, m := range PodMetricsTo(got) {
			if err := PodMetricsFrom(&again, m); err != nil {
				t.Error(err)
			}
		}
	})
}
