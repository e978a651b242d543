package etc

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestAlertsNameMetricsThatExistAndSayWhatToDo keeps the alerts, the page and the code together.
func TestAlertsNameMetricsThatExistAndSayWhatToDo(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				For         string            `yaml:"for"`
				Annotations map[string]string `yaml:"annotations"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, name := range []string{"metrics.go", "statuses.go"} {
		b, err := os.ReadFile("../internal/metrics/" + name)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(b)
	}
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) < 5 {
		t.Fatal("the alerts are not read")
	}
	metric := regexp.MustCompile(`capstan_[a-z_]+`)
	for _, r := range file.Groups[0].Rules {
		if r.Annotations["runbook"] == "" || !strings.Contains(string(page), r.Alert) {
			t.Errorf("%s has no runbook, or is not in OPERATIONS.md", r.Alert)
		}
		for _, name := range metric.FindAllString(r.Expr, -1) {
			if !strings.Contains(code.String(), `"`+strings.TrimPrefix(name, "capstan_")+`"`) {
				t.Errorf("%s asks for %s, which nobody registers", r.Alert, name)
			}
		}
	}
	for _, name := range metric.FindAllString(string(page), -1) {
		short := strings.TrimSuffix(strings.TrimPrefix(name, "capstan_"), "_count")
		if !strings.Contains(code.String(), `"`+short+`"`) {
			t.Errorf("OPERATIONS.md names %s, which nobody registers", name)
		}
	}
}

func TestTheUnitIsAsTheDocumentsSay(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("capstan.service")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"Type=notify-reload", "DynamicUser=yes", "LoadCredential=source-uri:", "LimitNOFILE=1048576", "Restart=on-failure", "WatchdogSec=60",
		"ExecStart=/usr/local/bin/capstan serve -c /etc/capstan.yaml",
	} {
		if !strings.Contains("\n"+string(text), "\n"+line) {
			t.Errorf("%s is missing", line)
		}
	}
}
