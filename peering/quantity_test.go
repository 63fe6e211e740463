package peering_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
)

func q(t testing.TB, s string) peering.Quantity {
	t.Helper()
	v, err := peering.ParseQuantity(s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// canonical is what Kubernetes writes; its String returns some texts as they were read.
func canonical(k resource.Quantity) string {
	number, suffix := k.CanonicalizeBytes(make([]byte, 0, 32))
	return string(number) + string(suffix)
}

// The canonical form is Kubernetes' own: both are asked.
func TestQuantityReadsAndWritesAsKubernetesDoes(t *testing.T) {
	for _, s := range []string{
		"0", "0m", "0Ki", "00", "1", "+1", "4", "500m", "1500m", "1000m", "0.5", ".5", "1.", "1.5", "0.001", "2.50",
		"1k", "1000", "1500", "2000k", "1M", "1G", "1T", "1P", "1E", "9E", "1.5G", "100000000",
		"1Ki", "1024", "1024Ki", "8Gi", "8192Mi", "1536Mi", "1.5Gi", "0.5Ki", "1023Ki", "1Ti", "1Pi", "1Ei", "7Ei",
		"9223372036854775807", "9223372036854775806m", "110",
	} {
		want, err := resource.ParseQuantity(s)
		if err != nil {
			t.Fatalf("%s: Kubernetes says %v", s, err)
		}
		got, err := peering.ParseQuantity(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got.String() != canonical(want) {
			t.Errorf("%s: wrote %s, Kubernetes writes %s", s, got, canonical(want))
		}
	}
}

func TestQuantityRefusesWhatIsOutOfRange(t *testing.T) {
	for _, s := range []string{
		"", "x", "m", ".", "+", "-1", "-0.1", "1e3", "1E3", "1n", "1u", "0.0001", "0.1m", "1KI", "1ki", "1 k", " 1", "1..2", "1.2.3",
		"1.0001Ki", "9223372036854775808", "10E", "8Ei", "1Ki1", strings.Repeat("9", 65), "0x10", "١",
	} {
		if got, err := peering.ParseQuantity(s); err == nil {
			t.Errorf("%q was read as %s", s, got)
		}
	}
}

func TestQuantityArithmetic(t *testing.T) {
	for _, tt := range []struct {
		name string
		got  peering.Quantity
		want string
	}{
		{"difference", q(t, "8Gi").Sub(q(t, "2Gi")), "6Gi"},
		{"difference below zero", q(t, "1").Sub(q(t, "1001m")), "0"},
		{"difference of parts", q(t, "2").Sub(q(t, "500m")), "1500m"},
		{"half", q(t, "8Gi").Percent(50), "4Gi"},
		{"a third of a core", q(t, "1").Percent(33), "330m"},
		{"rounded down to a thousandth", q(t, "1m").Percent(99), "0"},
		{"more than all", q(t, "3").Percent(150), "3"},
		{"less than nothing", q(t, "3").Percent(-1), "0"},
		{"floor", q(t, "1999m").Floor(), "1"},
		{"smaller", q(t, "1Gi").Min(q(t, "1G")), "1G"},
		{"whole", peering.Whole(3), "3"},
		{"whole below zero", peering.Whole(-3), "0"},
	} {
		if tt.got.String() != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, tt.got, tt.want)
		}
	}
	sum, err := q(t, "1500m").Add(q(t, "500m"))
	if err != nil || sum.String() != "2" {
		t.Errorf("sum: %s, %v", sum, err)
	}
	for _, tt := range []struct {
		a, b peering.Quantity
		ok   bool
	}{
		{peering.Whole(math.MaxInt64), peering.Whole(1), false},
		{peering.Whole(math.MaxInt64), q(t, "1m"), false},
		{peering.Whole(math.MaxInt64), peering.Whole(0), true},
		{peering.Whole(math.MaxInt64 - 1), peering.Whole(1), true},
		{q(t, "9223372036854775806999m"), q(t, "1m"), true},
		{q(t, "9223372036854775806999m"), q(t, "2m"), false},
	} {
		if sum, err := tt.a.Add(tt.b); (err == nil) != tt.ok || !tt.ok && !errors.Is(err, peering.ErrQuantityRange) {
			t.Errorf("%s + %s is %s, %v", tt.a, tt.b, sum, err)
		}
	}
	if q(t, "1Ki") == q(t, "1024") || q(t, "1Ki").Cmp(q(t, "1024")) != 0 {
		t.Error("notation matters to == and not to Cmp")
	}
}

func TestResourcesAreParsedWithinLimits(t *testing.T) {
	have, err := peering.ParseResources(map[string]string{"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"})
	if err != nil {
		t.Fatal(err)
	}
	if s := have.String(); s != "cpu=4, memory=8Gi, nvidia.com/gpu=2" {
		t.Error(s)
	}
	if name, ok := (peering.Resources{"cpu": q(t, "4001m")}).Fits(have); ok || name != "cpu" {
		t.Error("more fits into less")
	}
	if _, ok := (peering.Resources{"cpu": q(t, "4"), "pods": q(t, "0")}).Fits(have); !ok {
		t.Error("as much does not fit")
	}
	sum, err := have.Add(peering.Resources{"cpu": q(t, "1"), "pods": q(t, "5")})
	if err != nil || sum.String() != "cpu=5, memory=8Gi, nvidia.com/gpu=2, pods=5" || len(have) != 3 {
		t.Errorf("sum %s, %v; of %s", sum, err, have)
	}
	if d := have.Sub(peering.Resources{"cpu": q(t, "5")}); d.String() != "cpu=0, memory=8Gi, nvidia.com/gpu=2" {
		t.Error(d)
	}
	for _, m := range []map[string]string{{"": "1"}, {"a b": "1"}, {"cpu": "x"}, {"UPPER.com/x": "1"}, {"a/b/c": "1"}, {"-a": "1"}, {strings.Repeat("a", 129): "1"}} {
		if _, err := peering.ParseResources(m); err == nil {
			t.Errorf("%v was accepted", m)
		}
	}
	many := map[string]string{}
	for i := range peering.MaxResources + 1 {
		many["r"+strings.Repeat("x", i)] = "1"
	}
	if _, err := peering.ParseResources(many); err == nil {
		t.Error("too many resources were accepted")
	}
}

func TestQuantitiesAddAndCompareLikeNumbers(t *testing.T) {
	gen := rapid.Custom(func(t *rapid.T) peering.Quantity {
		n := rapid.Int64Range(0, 1<<61).Draw(t, "units")
		v, err := peering.ParseQuantity(resource.NewQuantity(n, rapid.SampledFrom([]resource.Format{resource.DecimalSI, resource.BinarySI}).Draw(t, "format")).String())
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "milli") {
			m, err := peering.ParseQuantity(resource.NewMilliQuantity(n, resource.DecimalSI).String())
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		return v
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		if again, err := peering.ParseQuantity(a.String()); err != nil || again != a {
			t.Fatalf("%s became %s, %v", a, again, err)
		}
		sum, err := a.Add(b)
		if err != nil {
			t.Fatal(err)
		}
		if sum.Sub(b).Cmp(a) != 0 || sum.Cmp(a) < 0 || a.Cmp(b) != -b.Cmp(a) {
			t.Fatalf("%s + %s = %s", a, b, sum)
		}
		kubernetes := func(v peering.Quantity) resource.Quantity { return resource.MustParse(v.String()) }
		more, less := kubernetes(a), kubernetes(b)
		more.Add(less)
		if more.Cmp(kubernetes(sum)) != 0 {
			t.Fatalf("%s + %s = %s, Kubernetes says %s", a, b, sum, canonical(more))
		}
		if less = kubernetes(a); a.Cmp(b) >= 0 {
			less.Sub(kubernetes(b))
			if less.Cmp(kubernetes(a.Sub(b))) != 0 {
				t.Fatalf("%s - %s = %s, Kubernetes says %s", a, b, a.Sub(b), canonical(less))
			}
		}
		p := rapid.IntRange(0, 100).Draw(t, "percent")
		if a.Percent(p).Cmp(a) > 0 || a.Floor().Cmp(a) > 0 {
			t.Fatalf("%d%% of %s is %s, its floor %s", p, a, a.Percent(p), a.Floor())
		}
		for _, v := range []peering.Quantity{a, b, sum, a.Percent(p), a.Sub(b)} {
			k, err := resource.ParseQuantity(v.String())
			if err != nil || canonical(k) != v.String() {
				t.Fatalf("%s is not canonical: Kubernetes writes %s, %v", v, canonical(k), err)
			}
		}
	})
}

func FuzzParseQuantity(f *testing.F) {
	for _, s := range []string{"1", "500m", "8Gi", "1.5", "1e3", "9223372036854775807", "7Ei", ".5k", "0.000001M"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := peering.ParseQuantity(s)
		if err != nil {
			return
		}
		again, err := peering.ParseQuantity(got.String())
		if err != nil || again != got {
			t.Fatalf("%q: %s became %s, %v", s, got, again, err)
		}
		k, err := resource.ParseQuantity(s)
		if err != nil {
			t.Fatalf("%q was read as %s, Kubernetes says %v", s, got, err)
		}
		if canonical(k) != got.String() {
			t.Fatalf("%q was written %s, by Kubernetes %s", s, got, canonical(k))
		}
	})
}
