package peering

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func amountsOf(t testing.TB, text string) Resources {
	t.Helper()
	if text == "" {
		return nil
	}
	list := map[string]string{}
	for amount := range strings.SplitSeq(text, ",") {
		name, q, _ := strings.Cut(amount, "=")
		list[name] = q
	}
	out, err := ParseResources(list)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// ranges makes a limit range of lists as in "max cpu=1,memory=1Gi; min cpu=100m".
func ranges(t testing.TB, text string) (l LimitRange) {
	t.Helper()
	for part := range strings.SplitSeq(text, "; ") {
		name, amounts, _ := strings.Cut(part, " ")
		for _, p := range l.parts() {
			if p.name == name {
				*p.amounts = amountsOf(t, amounts)
			}
		}
	}
	return l
}

func TestALimitRangeIsInOrder(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "",
		"default cpu=1; defaultRequest cpu=500m; max cpu=2; min cpu=100m; podMax cpu=4; podMin cpu=200m": "",
		"default cpu=1; defaultRequest cpu=1; max cpu=1; min cpu=1; podMax cpu=1; podMin cpu=1":          "",
		"default ephemeral-storage=1Gi; max memory=1Gi":                                                  "",
		"max nvidia.com/gpu=1":                    "max: nvidia.com/gpu is neither",
		"podMin pods=1":                           "podMin: pods is neither",
		"min memory=1500m":                        "min: memory 1500m is not a whole number",
		"max cpu=1; min cpu=2":                    "of cpu min is 2, more than max, 1",
		"default cpu=1; min cpu=2":                "of cpu min is 2, more than default, 1",
		"defaultRequest cpu=1; min cpu=2":         "of cpu min is 2, more than defaultRequest, 1",
		"default cpu=1; defaultRequest cpu=2":     "of cpu defaultRequest is 2, more than default, 1",
		"defaultRequest cpu=2; max cpu=1":         "of cpu defaultRequest is 2, more than max, 1",
		"default memory=2Gi; max memory=1Gi":      "of memory default is 2Gi, more than max, 1Gi",
		"podMax memory=1Gi; podMin memory=2Gi":    "of memory podMin is 2Gi, more than podMax, 1Gi",
		"max cpu=1; min memory=2Gi; podMin cpu=3": "",
	} {
		switch err := ranges(t, text).Check(); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestAContractFillsInTheDefaultsOfItsLimitRange(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ granted, policy, want string }{
		"nothing":                                  {"cpu=4", "", ""},
		"the default limit is max":                 {"cpu=4", "max cpu=2", "default cpu=2; defaultRequest cpu=2; max cpu=2"},
		"the default request is the limit":         {"cpu=4", "default cpu=1; max cpu=2", "default cpu=1; defaultRequest cpu=1; max cpu=2"},
		"without a limit it is min":                {"cpu=4", "min cpu=1", "defaultRequest cpu=1; min cpu=1"},
		"what is set stays":                        {"cpu=4", "default cpu=1; defaultRequest cpu=100m; max cpu=2; min cpu=50m; podMax cpu=4; podMin cpu=1", "default cpu=1; defaultRequest cpu=100m; max cpu=2; min cpu=50m; podMax cpu=4; podMin cpu=1"},
		"each resource by itself":                  {"cpu=4,memory=1Gi", "defaultRequest cpu=100m; max memory=1Gi", "default memory=1Gi; defaultRequest cpu=100m,memory=1Gi; max memory=1Gi"},
		"nothing is requested that is not granted": {"cpu=4", "defaultRequest cpu=100m,memory=64Mi", "defaultRequest cpu=100m"},
		"nor by a limit":                           {"cpu=4", "default memory=64Mi", "default memory=64Mi; defaultRequest memory=0"},
		"nor because it has to be that at least":   {"cpu=4", "min memory=64Mi; max memory=1Gi; podMin memory=64Mi,cpu=1", "default memory=1Gi; defaultRequest memory=0; max memory=1Gi; podMin cpu=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := ranges(t, tc.policy)
			got := policy.within(amountsOf(t, tc.granted))
			if want := ranges(t, tc.want); !got.Equal(want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if err := got.Check(); err != nil {
				t.Error(err)
			}
			if !policy.Equal(ranges(t, tc.policy)) {
				t.Error("the policy has changed")
			}
		})
	}
}

// A contract without a limit range is written as before there were any.
func TestALimitRangeIsWrittenUnlessEmpty(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "max cpu=2", "default memory=64Mi; defaultRequest memory=0", "default cpu=1; defaultRequest cpu=100m; max cpu=2; min cpu=50m; podMax cpu=4; podMin cpu=1"} {
		l := ranges(t, text)
		j := limitRangeJSON(l)
		if (j == nil) != (text == "") {
			t.Errorf("%q is written as %+v", text, j)
		}
		got, err := j.limitRange()
		if err != nil {
			t.Fatal(err)
		}
		if !got.Equal(l) || got.IsZero() != (text == "") {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	if _, err := (&jsonLimitRange{Max: map[string]string{"cpu": "much"}}).limitRange(); err == nil || !strings.Contains(err.Error(), "limitRange.max") {
		t.Errorf("got %v", err)
	}
}

func TestAClonedLimitRangeIsItsOwn(t *testing.T) {
	t.Parallel()
	l := ranges(t, "max cpu=2; min cpu=1")
	c := l.Clone()
	maps.Copy(c.Max, Resources{"cpu": Whole(9)})
	if diff := cmp.Diff(Whole(2), l.Max["cpu"], cmp.AllowUnexported(Quantity{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTermsWithALimitRangeAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	terms := testTerms(t, newCluster(t), newCluster(t))
	terms.LimitRange = ranges(t, "default cpu=1; defaultRequest cpu=100m,memory=0; max cpu=2; min cpu=50m; podMax cpu=4; podMin cpu=1")
	payload, err := terms.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const want = `"limitRange":{"default":{"cpu":"1"},"defaultRequest":{"cpu":"100m","memory":"0"},"max":{"cpu":"2"},"min":{"cpu":"50m"},"podMax":{"cpu":"4"},"podMin":{"cpu":"1"}}`
	if !strings.Contains(string(payload), want) {
		t.Errorf("written as %s", payload)
	}
	got, err := ParseTerms(payload)
	if err != nil {
		t.Fatal(err)
	}
	if what := terms.Differs(got.Clauses); what != "" {
		t.Error(what)
	}
	// Nothing that has a second form can be signed.
	for _, other := range []string{
		strings.Replace(string(payload), want, `"limitRange":{}`, 1),
		strings.Replace(string(payload), `"max":{"cpu":"2"}`, `"max":{"cpu":"2000m"}`, 1),
		strings.Replace(string(payload), `"podMax"`, `"other":{},"podMax"`, 1),
	} {
		if _, err := ParseTerms([]byte(other)); err == nil {
			t.Errorf("%s was read", other)
		}
	}
}
