export async function brokenWf() {
  'use workflow';
  const numbers: number[] = [];
  for (const width of [5, 15]) {
    numbers.push(...(await Promise.all(Array.from({ length: width }, (_, index) => same(index)))));
  }
  return { numbers };
}

async function same(value: number): Promise<number> {
  'use step';
  return value;
}
