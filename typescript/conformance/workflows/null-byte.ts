export async function nullByteWorkflow(): Promise<string> {
  'use workflow';
  return text();
}

async function text(): Promise<string> {
  'use step';
  return 'null byte \0';
}
